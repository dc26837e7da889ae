// Wide tables become narrower, then a card for each row; wide printed text becomes smaller.
(() => {
  'use strict';
  const PHONE = 600, SMALLEST = 10;   // px
  const SENTENCE = 30;   // letters: a longer cell may be broken into lines

  // what stands above each column, from the top header cell to the lowest
  function columnNames(table) {
    const grid = [...table.querySelectorAll('thead tr')].map(() => []);
    [...table.querySelectorAll('thead tr')].forEach((row, i) => {
      let at = 0;
      for (const cell of row.cells) {
        while (grid[i][at] !== undefined) at++;
        for (let j = 0; j < cell.rowSpan; j++)
          for (let k = 0; k < cell.colSpan; k++)
            if (grid[i + j]) grid[i + j][at + k] = j ? '' : cell.textContent.trim();
      }
    });
    return (grid[0] || []).map((_, i) => grid.map((row) => row[i]).filter(Boolean).join(' '));
  }

  function label(table) {
    const names = columnNames(table);
    for (const row of table.querySelectorAll('tbody tr')) {
      let at = names.length - row.cells.length;   // a cell above may span this row
      for (const cell of row.cells) cell.dataset.label = names[at++] || '';
    }
  }

  function fitTable(table) {
    const box = table.closest('.output, .pst-scrollable-table-container') || table.parentElement;
    const wide = () => table.offsetWidth > box.clientWidth + 1 || box.scrollWidth > box.clientWidth + 1;
    table.classList.remove('tight', 'cards');
    if (!box.clientWidth || !table.tHead) return;
    for (const cell of table.querySelectorAll('tbody td')) {
      cell.classList.toggle('sentence', cell.textContent.trim().length > SENTENCE);
    }
    if (wide()) table.classList.add('tight');
    if (!wide()) return;
    if (!table.dataset.labelled) { label(table); table.dataset.labelled = true; }
    table.classList.replace('tight', 'cards');
  }

  function fitText(pre) {
    pre.classList.remove('wrapped');
    pre.style.fontSize = '';
    if (pre.scrollWidth <= pre.clientWidth + 1) return;
    if (window.innerWidth <= PHONE) {   // there printed sentences are broken; tables and code scroll
      if (pre.closest('.cell_output') && !/\S {2,}\S/.test(pre.textContent)) pre.classList.add('wrapped');
      return;
    }
    const own = parseFloat(getComputedStyle(pre).fontSize), room = (pre.clientWidth - 34) / (pre.scrollWidth - 16);
    pre.style.fontSize = `${Math.max(SMALLEST, Math.floor(10 * own * room) / 10)}px`;
    if (pre.scrollWidth > pre.clientWidth + 1) pre.classList.add('wrapped');
  }

  function fit() {
    document.querySelectorAll('.bd-article table:not(.indextable)').forEach(fitTable);
    document.querySelectorAll('.bd-article pre').forEach(fitText);
  }

  let before = 0;
  const again = () => { if (window.innerWidth !== before) { before = window.innerWidth; fit(); } };
  window.addEventListener('load', again);
  window.addEventListener('resize', () => requestAnimationFrame(again));
  document.addEventListener('toggle', (event) => {   // what was folded had no width
    for (const table of event.target.querySelectorAll('table')) fitTable(table);
    for (const pre of event.target.querySelectorAll('pre')) fitText(pre);
  }, true);
})();
