'use strict';
// Tabs are radio buttons and need no script. This adds sorting, the legend, the choice of light or dark, copying and, where
// Plotly is in the page, figures that can be zoomed and asked.
const root = document.documentElement;
const figures = () => JSON.parse(document.getElementById('figures')?.textContent || '{}');
const hidden = new Set();

function tone(name, opacity) {
  const value = getComputedStyle(root).getPropertyValue('--' + name).trim() || name;
  if (!opacity) return value;
  const [r, g, b] = [1, 3, 5].map(i => parseInt(value.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
}
function toned(data) {
  if (Array.isArray(data)) return data.map(toned);
  if (data && typeof data === 'object') return Object.fromEntries(Object.entries(data).map(([k, v]) => [k, toned(v)]));
  const found = typeof data === 'string' && /^@([a-z]+\d?|#[0-9a-f]{6})(?:\/([\d.]+))?$/.exec(data);
  return found ? tone(found[1], found[2]) : data;
}
function visible(trace) {
  return !hidden.has(String(trace.meta));
}
function show(box, figure) {
  const touch = matchMedia('(pointer: coarse)').matches;
  const axis = { gridcolor: '@rule', linecolor: '@rule', tickcolor: '@rule', tickfont: { size: 11.5 } };
  const layout = {
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', margin: { l: 48, r: 12, t: 12, b: 42 },
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: '@soft' },
    hoverlabel: { bgcolor: '@panel', bordercolor: '@rule', font: { color: '@ink', size: 12 }, align: 'left' },
    modebar: { bgcolor: 'rgba(0,0,0,0)', color: '@soft', activecolor: '@accent' },
    dragmode: touch ? false : 'zoom', ...figure.layout,
    xaxis: { ...axis, ...figure.layout.xaxis }, yaxis: { ...axis, ...figure.layout.yaxis },
  };
  const data = figure.data.map(trace => ({ ...trace, visible: visible(trace) }));
  const live = box.querySelector('.live');
  if (figure.least) live.style.setProperty('--least', figure.least + 'px');
  box.classList.add('drawn');
  return Plotly.react(live, toned(data), toned(layout), {
    responsive: true, displaylogo: false, doubleClick: 'reset',
    displayModeBar: touch ? false : 'hover', modeBarButtons: [['toImage', 'zoom2d', 'pan2d', 'resetScale2d']],
    toImageButtonOptions: { format: 'svg', filename: box.id },
  });
}

function start() {
  const known = typeof Plotly === 'undefined' ? {} : figures();
  const draw = box => known[box.id] && show(box, known[box.id]);
  // A figure is drawn when it comes near the window: one in a closed tab has no size yet.
  const watch = new IntersectionObserver(seen => seen.forEach(({ isIntersecting, target }) => {
    if (isIntersecting) { watch.unobserve(target); draw(target); }
  }), { rootMargin: '800px' });
  document.querySelectorAll('.plot').forEach(box => watch.observe(box));
  const redraw = () => document.querySelectorAll('.plot.drawn').forEach(draw);
  matchMedia('(prefers-color-scheme: dark)').onchange = redraw;
  document.querySelector('#theme').onclick = () => {
    const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
    redraw();
  };
  // Paper is light, and shows figures that nobody has scrolled to.
  let before;
  window.onbeforeprint = () => {
    before = root.dataset.theme;
    root.dataset.theme = 'light';
    document.querySelectorAll('.plot').forEach(box => box.offsetParent && draw(box));
  };
  window.onafterprint = () => {
    before ? root.dataset.theme = before : delete root.dataset.theme;
    redraw();
  };
  const heads = [...document.querySelectorAll('#board [data-column]')];
  heads.forEach(button => button.onclick = () => {
    const head = button.parentNode, body = document.querySelector('#board tbody');
    const column = Number(button.dataset.column), old = head.getAttribute('aria-sort');
    const down = old ? old === 'ascending' : button.dataset.down === '1';
    heads.forEach(b => b.parentNode.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const value = row => row.cells[column].dataset.v;
    [...body.rows].sort((a, b) => {
      const x = value(a), y = value(b);
      if (x === '' || y === '') return (x === '') - (y === '');
      return (column ? x - y : x.localeCompare(y)) * (down ? -1 : 1);
    }).forEach(row => body.append(row));
  });
  document.querySelectorAll('.legend input').forEach(input => {
    input.checked = !hidden.has(input.dataset.m);
    input.onchange = () => {
      const method = input.dataset.m;
      input.checked ? hidden.delete(method) : hidden.add(method);
      document.querySelectorAll(`svg [data-s="${method}"]`).forEach(part => part.classList.toggle('off', !input.checked));
      redraw();
    };
  });
  document.querySelectorAll('.code button').forEach(button => button.onclick = async () => {
    const text = button.parentNode.querySelector('pre');
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = 'copied';
    } catch {  // no permission: at least it is selected
      getSelection().selectAllChildren(text);
      button.textContent = 'selected';
    }
    setTimeout(() => button.textContent = 'copy', 1500);
  });
}
start();
