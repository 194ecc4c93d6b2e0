// The page is asked for again whenever something has changed in the runs' folders.
let stamp = null;
setInterval(async () => {
  try {
    const now = await (await fetch('stamp')).text();
    document.body.classList.remove('gone');
    if (stamp !== null && now !== stamp) {
      const body = await (await fetch('main')).text();
      const open = [...document.querySelectorAll('.tab > input:checked')].map(input => input.id);
      const sorted = document.querySelector('#board [aria-sort]');
      const column = sorted?.querySelector('button').dataset.column, way = sorted?.getAttribute('aria-sort');
      document.getElementById('all').outerHTML = body;
      start();
      open.forEach(id => { const input = document.getElementById(id); if (input) input.checked = true; });
      const button = column && document.querySelector(`#board [data-column="${column}"]`);
      for (let i = 0; button && i < 2 && button.parentNode.getAttribute('aria-sort') !== way; i++) button.click();
    }
    stamp = now;
  } catch {
    document.body.classList.add('gone');
  }
}, 2000);
