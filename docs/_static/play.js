// The page `play`: five pictures that follow their controls, and the picture of the first page.
// Plain JavaScript, no server: figures come from formulas.js and from PLAY, tools/play.py's numbers.
(() => {
  'use strict';
  const {ringTime, product, played, possible, memory, sent, SCHEDULES, range} = Formulas;
  const BLUE = '#0072b2', SKY = '#56b4e9', ORANGE = '#e69f00', GREEN = '#009e73', RED = '#d55e00',
    PURPLE = '#cc79a7', GREY = '#999999', powers = (from, to) => range(to - from + 1).map((i) => 2 ** (i + from));

  // words and numbers
  const digits = (x, n = 3) => Number(x.toPrecision(n)).toLocaleString('en-US', {maximumSignificantDigits: n});
  const UNITS = {s: [[1, 's'], [1e-3, 'ms'], [1e-6, 'µs']],
    B: [[1, 'GB'], [1e-3, 'MB'], [1e-6, 'KB']]};
  function withUnit(x, units) {
    const [scale, unit] = units.find(([scale]) => x >= 0.9995 * scale) || units.at(-1);
    return `${digits(x / scale)} ${unit}`;
  }
  const seconds = (x) => withUnit(x, UNITS.s), bytes = (x) => withUnit(x, UNITS.B);
  const percent = (x) => `${(100 * x).toFixed(x < .1 ? 1 : 0)} %`;

  // drawing
  const tag = (name, attributes, content = '') => {
    const written = Object.entries(attributes).map(([key, value]) => ` ${key}="${value}"`);
    return `<${name}${written.join('')}>${content}</${name}>`;
  };
  const r1 = (x) => Math.round(10 * x) / 10;
  const box = (x, y, width, height, fill, tip = '') => tag('rect',
    {x: r1(x), y: r1(y), width: r1(Math.max(width, 0)), height: r1(height), fill}, tip && tag('title', {}, tip));
  const line = (x, y, x2, y2, stroke = 'currentColor', width = 1) => tag('line',
    {x1: r1(x), y1: r1(y), x2: r1(x2), y2: r1(y2), stroke, 'stroke-width': width});
  const text = (x, y, words, anchor = 'start', fill = 'currentColor') => tag('text',
    {x: r1(x), y: r1(y), 'text-anchor': anchor, fill}, words);
  const picture = (width, height, parts, label) => tag('svg',
    {viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': label}, parts.join(''));
  const legend = (items) => `<p class="legend">${items.map(([color, words]) =>
    `<span><i style="background:${color}"></i>${words}</span>`).join('')}</p>`;

  // axes whose ticks are powers of ten
  function logAxes(width, height, [x0, x1], [y0, y1], unitX, unitY) {
    const left = 62, right = width - 12, top = 12, bottom = height - 26;
    const at = (low, high, from, to) => (v) =>
      from + (to - from) * Math.log(v / low) / Math.log(high / low);
    const x = at(x0, x1, left, right), y = at(y0, y1, bottom, top), parts = [];
    const tens = (low, high) => range(Math.floor(Math.log10(high) + 1e-9) - Math.ceil(Math.log10(low) - 1e-9) + 1)
      .map((i) => 10 ** (i + Math.ceil(Math.log10(low) - 1e-9)));
    const every = (ticks, room) => ticks.filter((_, i) => i % Math.ceil(ticks.length / room) === 0);
    for (const v of every(tens(x0, x1), (right - left) / 70))
      parts.push(line(x(v), top, x(v), bottom, '#8884', 1), text(x(v), bottom + 17, unitX(v), 'middle'));
    for (const v of every(tens(y0, y1), 6))
      parts.push(line(left, y(v), right, y(v), '#8884', 1), text(left - 6, y(v) + 4, unitY(v), 'end'));
    return {x, y, parts, left, right, top, bottom};
  }
  const path = (points, stroke, width = 2, dash = '') => tag('polyline',
    {points: points.map(([x, y]) => `${r1(x)},${r1(y)}`).join(' '), fill: 'none', stroke,
     'stroke-width': width, 'stroke-dasharray': dash});
  const dot = (x, y, fill = RED) => tag('circle', {cx: r1(x), cy: r1(y), r: 6, fill});

  // the passes of a pipeline, a row for each rank
  function pipeline(run, p, v, width, height) {
    const left = 34, scale = (width - left - 2) / run.total, row = height / p, parts = [];
    const shades = {F: [BLUE, SKY], B: [ORANGE, '#f6cf71'], W: [GREEN, '#7fcfb8']};
    for (const rank of range(p))
      parts.push(text(left - 8, (rank + .5) * row + 4, rank + 1, 'end'), box(left, rank * row + 1, width - left - 2, row - 2, '#8882'));
    for (const one of run.passes) parts.push(box(
      left + one.start * scale, one.rank * row + 1, (one.end - one.start) * scale - .4, row - 2,
      shades[one.kind][v > 1 ? one.chunk % 2 : 0],
      `${{F: 'forward', B: 'backward', W: 'gradients of weights'}[one.kind]}, micro-batch ${one.micro + 1}`));
    return {parts, left, scale};
  }
  const PASSES = [[BLUE, 'forward'], [ORANGE, 'backward'], [GREEN, 'gradients of weights'], ['#8882', 'idle']];

  // what each widget shows: {picture, words} of its state
  const names = Object.keys(PLAY.systems), models = Object.keys(PLAY.models);

  const ring = {
    controls: () => [['system', names], ['collective', ['allreduce', 'allgather', 'reducescatter', 'broadcast']],
      ['GPUs', powers(1, 12), 64], ['of them in one domain', powers(0, 6), 8], ['size', powers(-20, 5), 1, bytes]],
    figures(s) {
      const system = PLAY.systems[s.system], n = s.GPUs;
      const d = Math.max(...system.in_domain.filter((d) => d <= s['of them in one domain'] && n % d === 0));
      return {d, time: (GB) => ringTime(system, s.collective, GB, n, d), latency: ringTime(system, s.collective, 1e-15, n, d)};
    },
    show(s, width) {
      const {d, time, latency} = this.figures(s), height = 260, sizes = powers(-20, 5), own = time(s.size);
      const axes = logAxes(width, height, [2 ** -20, 32], [1e-6, 10], bytes, seconds);
      const curve = (f, color, dash) => path(sizes.map((GB) => [axes.x(GB), axes.y(Math.min(Math.max(f(GB), 1e-6), 10))]), color, 2, dash);
      const parts = [...axes.parts, curve(() => latency, GREY, '4 4'), curve((GB) => time(GB) - latency, SKY, '4 4'),
        curve(time, BLUE), dot(axes.x(s.size), axes.y(Math.min(Math.max(own, 1e-6), 10)))];
      const share = latency / own, even = s.size * latency / (own - latency);
      return {picture: picture(width, height, parts, `${s.collective}: ${seconds(own)}`)
          + legend([[BLUE, 'time'], [SKY, 'bytes alone'], [GREY, 'latency alone']]),
        words: `<b>${seconds(own)}</b> for ${bytes(s.size)} on ${s.GPUs} GPUs, ${d} in each NVLink domain. `
          + `${percent(share)} is latency: below ${bytes(even)} a message costs mostly its steps, above it mostly its bytes.`};
    },
  };

  const roofline = {
    controls: () => [['system', names, 'H200-141GB'], ['m', powers(0, 16), 4096], ['n', powers(5, 16), 4096], ['k', powers(5, 16), 4096]],
    figures: (s) => product(PLAY.systems[s.system], s.m, s.n, s.k),
    show(s, width) {
      const f = this.figures(s), system = PLAY.systems[s.system], height = 260, ridge = 1000 * system.matrix / system.hbm;
      const axes = logAxes(width, height, [.5, 20000], [.001, 3000], digits, digits), low = (y) => Math.max(y, .001);
      const roof = [.5, ridge, 20000].map((x) => [axes.x(x), axes.y(low(Math.min(system.matrix, x * system.hbm / 1000)))]);
      const clip = (x) => Math.min(Math.max(x, .5), 20000);
      const parts = [...axes.parts, path(roof, BLUE), line(axes.x(ridge), axes.y(system.matrix), axes.x(ridge), axes.bottom, '#8888'),
        text(axes.x(ridge) + 5, axes.bottom - 6, `ridge ${digits(ridge)}`), dot(axes.x(clip(f.intensity)), axes.y(low(f.rate)))];
      const launch = Formulas.LAUNCH, waits = f.memory > f.compute ? 'memory' : f.compute > 2 * launch ? 'compute' : 'its launch';
      return {picture: picture(width, height, parts, `${digits(f.rate)} TFLOP/s`)
          + legend([[BLUE, 'roof: TFLOP/s against FLOP per byte'], [RED, 'this product']]),
        words: `<b>${seconds(f.time)}</b>, ${digits(f.rate)} TFLOP/s: ${percent(f.rate / system.matrix)} of the peak. It makes ${digits(f.intensity)} FLOP of each byte and waits for <b>${waits}</b>.`};
    },
  };

  const bubble = {
    controls: () => [['schedule', Object.keys(SCHEDULES)], ['stages', range(15).map((i) => i + 2), 4],
      ['micro-batches', range(31).map((i) => i + 2), 8], ['chunks', [1, 2, 3, 4], 1]],
    figures(s) {
      const [name, p, N] = [s.schedule, s.stages, s['micro-batches']], v = SCHEDULES[name].chunks || s.chunks;
      if (!possible(name, p, v, N)) return null;
      const run = played(name, p, v, N, 1 / v, 1 / v, 1 / v);
      return {run, p, v, idle: 1 - run.busy / run.total};
    },
    show(s, width) {
      const f = this.figures(s);
      if (!f) return {picture: '', words: s.schedule === '1f1b'
        ? 'Several chunks need micro-batches that the stages divide.'
        : `${s.schedule} cannot run so: it needs more micro-batches${s.schedule === 'gpipe' ? ', or one chunk' : ''}.`};
      const height = Math.max(110, 22 * f.p), {parts} = pipeline(f.run, f.p, f.v, width, height);
      return {picture: picture(width, height, parts, `idle ${percent(f.idle)}`) + legend(PASSES),
        words: `Each stage idles <b>${percent(f.idle)}</b> of the time: ${digits(f.run.total - f.run.busy)} units beside ${f.run.busy} of work (a forward pass is 1, a backward pass 2).`};
    },
  };

  // the map: columns of PLAY.cell
  const column = Object.fromEntries(PLAY.cell.map((name, i) => [name, i]));
  const PARTS = [['compute_s', 'compute', BLUE], ['exposed_memory_s', 'memory traffic', SKY], ['tp_comm_s', 'tensor messages', RED],
    ['dp_comm_s', 'data messages', ORANGE], ['pp_comm_s', 'pipeline messages', PURPLE], ['bubble_s', 'bubble', GREY]];
  const atCell = (cell, name) => cell[column[name]];
  const map = {
    controls: () => [['model', models], ['system', Object.keys(Object.values(PLAY.maps)[0]), 'H200-141GB'], ['GPUs', [64, 512, 4096], 512]],
    figures(s) {
      const cells = PLAY.maps[s.model][s.system][s.GPUs], capacity = PLAY.systems[s.system].capacity;
      const fits = (cell) => atCell(cell, 'memory_GB') <= capacity, all = cells.filter(fits);
      const best = all.length ? all.reduce((a, b) => atCell(a, 'iteration_s') <= atCell(b, 'iteration_s') ? a : b) : null;
      const same = (cell) => s.chosen && cell[0] === s.chosen[0] && cell[1] === s.chosen[1];
      return {cells, capacity, fits, best, chosen: cells.find(same) || best || cells[0]};
    },
    show(s, width) {
      const {cells, capacity, fits, best, chosen} = this.figures(s), left = 44, time = (cell) => atCell(cell, 'iteration_s');
      const [tps, pps] = [0, 1].map((i) => [...new Set(cells.map((cell) => cell[i]))].sort((a, b) => a - b));
      const w = (width - left) / pps.length, h = 30, height = h * tps.length + 26, parts = [];
      for (const [i, tp] of tps.entries()) parts.push(text(left - 6, h * i + 19, `tp ${tp}`, 'end'));
      for (const [j, pp] of pps.entries()) parts.push(text(left + w * (j + .5), height - 8, j ? pp : `pp ${pp}`, 'middle'));
      for (const cell of cells) {
        const x = left + w * pps.indexOf(cell[1]), y = h * tps.indexOf(cell[0]), over = best ? time(cell) / time(best) : 1;
        const fill = fits(cell) ? `rgb(${[0, 114, 178].map((c) => Math.round(c + (235 - c) * Math.min(Math.log2(over) / 3, 1)))})` : '#8883';
        const ink = fits(cell) ? (over < 1.9 ? '#fff' : '#222') : 'currentColor';
        parts.push(tag('g', {'data-cell': `${cell[0]},${cell[1]}`, tabindex: 0, role: 'button', style: 'cursor:pointer',
          'aria-label': `tp ${cell[0]}, pp ${cell[1]}: ${digits(time(cell))} s, ${digits(atCell(cell, 'memory_GB'))} GB`},
          box(x + 1, y + 1, w - 2, h - 2, fill) + (w > 33 ? text(x + w / 2, y + 19, digits(time(cell), w > 44 ? 3 : 2), 'middle', ink) : '')
          + (cell === chosen ? tag('rect', {x: r1(x + 2), y: r1(y + 2), width: r1(w - 4), height: h - 4, fill: 'none', stroke: RED, 'stroke-width': 3}) : '')));
      }
      const bars = [box(0, 0, width, 22, '#8882')];
      let x = 0;
      for (const [name, words, color] of PARTS) {
        const share = width * atCell(chosen, name) / time(chosen);
        bars.push(box(x, 0, share, 22, color, `${words}: ${seconds(atCell(chosen, name))}`)); x += share;
      }
      const GB = atCell(chosen, 'memory_GB'), [tp, pp, dp, micro] = chosen;
      const against = !best ? 'Nothing fits.' : chosen === best ? 'This is the fastest that fits.'
        : fits(chosen) ? `${digits(time(chosen) / time(best))} times the fastest that fits.` : `It needs ${digits(GB - capacity)} GB more than a GPU has.`;
      return {picture: picture(width, height, parts, 'iteration time of every tp and pp') + picture(width, 24, bars, 'parts of the time')
          + legend(PARTS.map(([, words, color]) => [color, words])),
        words: `tp ${tp} x pp ${pp} x dp ${dp}, micro-batches of ${micro}: <b>${digits(time(chosen), 4)} s</b> an iteration of ${PLAY.batch} samples, ${digits(GB)} of ${capacity} GB. ${against} Grey cells do not fit; click any.`};
    },
  };

  const zero = {
    controls: () => [['model', models], ['tp', [1, 2, 4, 8], 8], ['pp', [1, 2, 4, 8, 16], 1], ['copies (dp)', powers(0, 10), 64], ['system', names, 'H200-141GB']],
    figures: (s) => range(4).map((stage) => memory(PLAY.models[s.model], stage, s.tp, s.pp, s['copies (dp)'], 1e9, 1)),
    show(s, width) {
      const all = this.figures(s), colors = {weights: BLUE, gradients: ORANGE, optimizer: GREEN, activations: PURPLE};
      const sums = all.map((one) => Object.values(one).reduce((a, b) => a + b)), capacity = PLAY.systems[s.system].capacity;
      const most = Math.max(...sums, capacity) * 1.02, left = 62, scale = (width - left) / most, parts = [], dp = s['copies (dp)'];
      for (const [stage, one] of all.entries()) {
        let x = left;
        parts.push(text(left - 8, 40 * stage + 22, `ZeRO ${stage}`, 'end'));
        for (const [name, GB] of Object.entries(one)) { parts.push(box(x, 40 * stage + 3, GB * scale, 28, colors[name], `${name}: ${digits(GB)} GB`)); x += GB * scale; }
      }
      parts.push(line(left + capacity * scale, 0, left + capacity * scale, 156, RED, 2), text(left + capacity * scale - 5, 170, `${capacity} GB`, 'end', RED));
      const fits = sums.findIndex((GB) => GB <= capacity);
      const told = sums.map((GB, stage) => `${stage}: ${digits(GB)} GB, sends ${digits(all[0].weights * sent(stage, dp))} GB`).join('; ');
      return {picture: picture(width, 176, parts, 'memory by ZeRO stage') + legend(Object.entries(colors).map(([name, color]) => [color, name])),
        words: `${fits < 0 ? 'No stage fits.' : `The first stage that fits is <b>${fits}</b>.`} By stage, ${told} a step at least.`};
    },
  };

  // a widget: controls, a picture, a sentence
  const WIDGETS = {ring, roofline, bubble, map, zero};
  function control([name, options, value = options[0], shown = String], state, changed) {
    const label = document.createElement('label'), numbers = typeof options[0] === 'number' && options.length > 3;
    const input = document.createElement(numbers ? 'input' : 'select'), output = document.createElement('output');
    state[name] = value;
    input.dataset.control = name;
    if (numbers) Object.assign(input, {type: 'range', min: 0, max: options.length - 1, step: 1});
    else input.append(...options.map((option) => new Option(option, option)));
    input.value = numbers ? options.indexOf(value) : value;
    const tell = () => { output.textContent = numbers ? shown(state[name]) : ''; };
    input.addEventListener('input', () => {
      state[name] = numbers ? options[input.value] : options.find((option) => String(option) === input.value);
      tell();
      changed();
    });
    tell();
    label.append(Object.assign(document.createElement('span'), {textContent: name}), input, output);
    return label;
  }
  function start(host, widget) {
    const state = {}, form = document.createElement('form'), view = document.createElement('div');
    const draw = () => {
      const {picture, words} = widget.show(state, Math.max(host.clientWidth, 280));
      view.innerHTML = `<div class="picture">${picture}</div><p class="words" aria-live="polite">${words}</p>`;
    };
    const choose = (event) => {
      const cell = event.target.closest('[data-cell]');
      if (!cell || (event.key && event.key !== 'Enter' && event.key !== ' ')) return;
      event.preventDefault();
      state.chosen = cell.dataset.cell.split(',').map(Number);
      draw();
      view.querySelector(`[data-cell="${cell.dataset.cell}"]`).focus();
    };
    form.append(...widget.controls().map((one) => control(one, state, draw)));
    form.addEventListener('submit', (event) => event.preventDefault());
    view.addEventListener('click', choose);
    view.addEventListener('keydown', choose);
    host.replaceChildren(form, view);
    new ResizeObserver(() => { if (host.clientWidth !== host.drawn) { host.drawn = host.clientWidth; draw(); } }).observe(host);
    host.state = state;
  }

  // the first page: a pipeline that is carried out before one's eyes
  function hero(host) {
    const {p, N, F, B} = PLAY.hero, run = played('1f1b', p, 1, N, F, B, 0);
    const width = Math.max(host.clientWidth, 280), height = 24 * p;
    const {parts} = pipeline(run, p, 1, width, height);
    const [rows, passes] = [parts.slice(0, 2 * p), parts.slice(2 * p)];
    host.innerHTML = picture(width, height, [...rows, tag('g', {class: 'unrolled'}, passes.join(''))], 'a pipeline at work')
      + legend([[BLUE, 'forward'], [ORANGE, 'backward'], ['#8882', 'waiting']]);
  }

  window.Play = {WIDGETS};
  window.addEventListener('DOMContentLoaded', () => {
    for (const host of document.querySelectorAll('[data-widget]')) start(host, WIDGETS[host.dataset.widget]);
    for (const host of document.querySelectorAll('[data-hero]')) {
      hero(host);
      new ResizeObserver(() => hero(host)).observe(host.parentElement);
    }
  });
})();
