// Looks at a page: where its words stand, which of them are cut, overlap or lie outside the window.
// Words of HTML are looked at line by line, as they are broken; what scrolls by itself is not cut,
// and what of it is scrolled away touches nothing.
(() => {
  const seen = [];
  const shown = e => e.checkVisibility({opacityProperty: true, visibilityProperty: true});
  const clip = e => {
    const all = {left: -1e9, right: 1e9, top: -1e9, bottom: 1e9};
    const within = (a, b) => ({left: Math.max(a.left, b.left), right: Math.min(a.right, b.right),
      top: Math.max(a.top, b.top), bottom: Math.min(a.bottom, b.bottom)});
    let box = all, port = all, scrolls = false;
    for (let p = e; p; p = p.parentElement) {
      const style = getComputedStyle(p);
      if (p.tagName !== 'svg' && style.overflowX === 'visible' && style.overflowY === 'visible') continue;
      if (p === document.documentElement || p === document.body) continue;
      const r = p.getBoundingClientRect();
      const wide = p.scrollWidth > p.clientWidth + 1;
      if ((style.overflowX === 'auto' || style.overflowX === 'scroll') && wide) { scrolls = true; port = within(port, r); continue; }
      box = within(box, r);
    }
    return [box, scrolls, port];
  };
  const add = (e, r, words) => {
    if (r.width < 1 || r.height < 1) return;
    const [box, scrolls, port] = clip(e);
    const figure = e.closest('figure'), svg = e.closest('svg');
    seen.push({words, left: r.left, right: r.right, top: r.top, bottom: r.bottom, scrolls, port,
      fixed: !!e.closest('nav, .legend'), where: (figure?.querySelector('h3') || e).textContent.slice(0, 40),
      cut: r.left < box.left - 2 || r.right > box.right + 2 || r.top < box.top - 2 || r.bottom > box.bottom + 2});
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = walker.nextNode();) {
    const e = node.parentElement, words = node.textContent.trim();
    if (!words || e.closest('script, style, title, noscript, .hoverlayer, details:not([open]) > :not(summary)') || !shown(e)) continue;
    if (e.closest('svg')) { if (e.tagName === 'text' || e.tagName === 'tspan') add(e, e.getBoundingClientRect(), words); continue; }
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const r of range.getClientRects()) add(e, r, words);
  }
  const rows = [...seen].sort((a, b) => a.top - b.top), touching = [];
  rows.forEach((a, i) => {
    for (let j = i + 1; j < rows.length && rows[j].top < a.bottom - 2; j++) {
      const b = rows[j];
      if (a.fixed !== b.fixed) continue;  // what sticks to the window lies above the rest on purpose
      const from = Math.max(a.left, b.left, a.port.left, b.port.left);
      const to = Math.min(a.right, b.right, a.port.right, b.port.right);
      if (to - from > 2 && Math.min(a.bottom, b.bottom) - b.top > 3)
        touching.push(`${a.where}: "${a.words.slice(0, 30)}" and "${b.words.slice(0, 30)}"`);
    }
  });
  return {
    count: seen.length,
    cut: seen.filter(s => s.cut).map(s => `${s.where}: ${s.words.slice(0, 40)}`),
    outside: seen.filter(s => !s.scrolls && (s.right > innerWidth + 1 || s.left < -1)).map(s => `${s.where}: ${s.words.slice(0, 40)}`),
    touching: [...new Set(touching)],
    scrolling: [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).map(
      e => e.id || e.firstElementChild?.id || e.textContent.trim().slice(0, 40)),
    sideways: document.documentElement.scrollWidth - innerWidth,
    dots: document.body.innerText.split('\u2026').length - 1,
  };
})()
