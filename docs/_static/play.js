// The pages `play` and `run`: pictures that follow their controls; and the picture of the first page.
// Plain JavaScript, no server: figures come from formulas.js and from PLAY, tools/play.py's numbers.
(() => {
  'use strict';
  const {ringTime, product, played, possible, memory, sent, iteration, travelled, SCHEDULES, range} = Formulas;
  const BLUE = '#0072b2', SKY = '#56b4e9', GREEN = '#009e73', RED = '#d55e00', GREY = '#999999', IDLE = '#8882';
  const COLORS = PLAY.colors;   // of meanings, as in every picture (notebook 83)
  const lighter = (hex) => `color-mix(in srgb, ${hex} 55%, white)`;
  const powers = (from, to) => range(to - from + 1).map((i) => 2 ** (i + from));

  // words and numbers
  const digits = (x, n = 3) => Number(x.toPrecision(n)).toLocaleString('en-US', {maximumSignificantDigits: n});
  const UNITS = {s: [[1, 's'], [1e-3, 'ms'], [1e-6, 'µs']],
    B: [[1, 'GB'], [1e-3, 'MB'], [1e-6, 'KB']]};
  function withUnit(x, units) {
    const [scale, unit] = units.find(([scale]) => x >= 0.9995 * scale) || units.at(-1);
    return `${digits(x / scale)} ${unit}`;
  }
  const seconds = (x) => withUnit(x, UNITS.s), bytes = (x) => withUnit(x, UNITS.B);
  const number = (n, one, many) => `${n} ${n === 1 ? one : many}`;
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
    const shades = Object.fromEntries(Object.entries(KINDS).map(([kind, words]) => [kind, COLORS[words]]));
    for (const rank of range(p))
      parts.push(text(left - 8, (rank + .5) * row + 4, rank + 1, 'end'), box(left, rank * row + 1, width - left - 2, row - 2, IDLE));
    for (const one of run.passes) parts.push(box(
      left + one.start * scale, one.rank * row + 1, (one.end - one.start) * scale - .4, row - 2,
      one.chunk % 2 ? lighter(shades[one.kind]) : shades[one.kind],
      `${KINDS[one.kind]}, micro-batch ${one.micro + 1}`));
    return {parts, left, scale};
  }
  const KINDS = {F: 'forward', B: 'backward', W: "weights' gradient"};
  const passesIn = (run) => legend([...Object.entries(KINDS).filter(([kind]) => run.passes.some((one) => one.kind === kind))
    .map(([, words]) => [COLORS[words], words]), [IDLE, 'idle']]);

  // parts of a whole, one beside the other, on a scale of its own
  function stacked(parts, left, y, scale, height, told) {
    let x = left;
    return Object.entries(parts).map(([name, size]) => {
      const own = box(x, y, size * scale, height, COLORS[name], `${name}: ${told(size)}`);
      x += size * scale;
      return own;
    });
  }
  const named = (parts) => legend(Object.keys(parts).map((name) => [COLORS[name], name]));
  const total = (parts) => Object.values(parts).reduce((a, b) => a + b);

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
      return {picture: picture(width, height, parts, `idle ${percent(f.idle)}`) + passesIn(f.run),
        words: `Each stage idles <b>${percent(f.idle)}</b> of the time: ${digits(f.run.total - f.run.busy)} units beside ${f.run.busy} of work (a forward pass is 1, a backward pass 2).`};
    },
  };

  // what a run takes: time and memory by parts, or why it is impossible
  const WORDS = {compute: 'compute', memory: 'exposed memory', tp: 'TP comm', dp: 'DP comm', pp: 'PP comm', bubble: 'bubble', other: 'other'};
  function runOf(name, system, run) {   // run: tp, pp, dp, N, size, v, stage, again
    const model = PLAY.models[name], {tp, pp, dp, N, size, v, stage, again} = run;
    if (model.depth % (pp * v)) return {why: `${pp * v} chunks do not divide ${model.depth} layers.`};
    if (v > 1 && (pp === 1 || N % pp)) return {why: 'Several chunks need several stages, and micro-batches that the stages divide.'};
    const times = PLAY.times[name][system][tp][size][again];
    const found = iteration(model, PLAY.systems[system], times, run);
    const parts = Object.fromEntries(Object.entries(found.parts).map(([key, s]) => [WORDS[key], s]));
    const GB = memory(model, stage, tp, pp, dp, N, size, v, again), held = total(GB);
    return {parts, GB, held, time: found.total, fits: held <= PLAY.systems[system].capacity, run, near: found.near, d: found.d};
  }

  const {tp: TENSOR, sizes: SIZES, recompute: AGAIN, stages: STAGES, chunks: CHUNKS} = PLAY;
  const map = {
    controls: () => [['model', models], ['system', names, 'H200-141GB'], ['GPUs', PLAY.n_gpus, 512],
      ['recompute', AGAIN], ['chunks', CHUNKS], ['prices', ['calibrated', 'corrected']]],
    found(s) {   // what a search found; a single stage has a single chunk
      const of = PLAY.maps[s.model][s.system][s.GPUs][s.recompute], chunked = of[s.chunks] || [];
      const rows = s.chunks === 1 ? chunked : [...of[1].filter(([, pp]) => pp === 1), ...chunked];
      return rows.map(([tp, pp, size, held, time, ...parts]) => ({
        run: {tp, pp, dp: s.GPUs / (tp * pp), size}, held, time, fits: held <= PLAY.systems[s.system].capacity,
        parts: Object.fromEntries(Object.values(WORDS).map((word, i) => [word, parts[i]]))}));
    },
    cell(s, tp, pp) {   // by the formulas: of all micro-batches the fastest that fits, or the smallest
      const dp = s.GPUs / (tp * pp), N = (size) => PLAY.batch / (dp * size), v = pp > 1 ? s.chunks : 1;
      const runs = SIZES.filter((size) => N(size) >= 1 && Number.isInteger(N(size)) && dp >= 1)
        .map((size) => runOf(s.model, s.system, {tp, pp, dp, N: N(size), size, v, stage: 1, again: s.recompute}))
        .filter((one) => !one.why);
      const fit = runs.filter((one) => one.fits), first = (some, of) => some.reduce((a, b) => (of(a) <= of(b) ? a : b));
      return fit.length ? first(fit, (one) => one.time) : runs.length ? first(runs, (one) => one.held) : null;
    },
    figures(s) {
      const all_of = () => TENSOR.flatMap((tp) => STAGES.map((pp) => this.cell(s, tp, pp))).filter((one) => one);
      const cells = s.prices === 'calibrated' ? this.found(s) : all_of();
      const all = cells.filter((one) => one.fits), best = all.length ? all.reduce((a, b) => (a.time <= b.time ? a : b)) : null;
      const same = ({run}) => s.chosen && run.tp === s.chosen[0] && run.pp === s.chosen[1];
      return {cells, best, chosen: cells.find(same) || best || cells[0]};
    },
    show(s, width) {
      const {cells, best, chosen} = this.figures(s), left = 44, capacity = PLAY.systems[s.system].capacity;
      const w = (width - left) / STAGES.length, h = 30, height = h * TENSOR.length + 26, parts = [];
      for (const [i, tp] of TENSOR.entries()) parts.push(text(left - 6, h * i + 19, `tp ${tp}`, 'end'));
      for (const [j, pp] of STAGES.entries()) parts.push(text(left + w * (j + .5), height - 8, j ? pp : `pp ${pp}`, 'middle'));
      for (const one of cells) {
        const {tp, pp} = one.run, x = left + w * STAGES.indexOf(pp), y = h * TENSOR.indexOf(tp), over = best ? one.time / best.time : 1;
        const fill = one.fits ? `rgb(${[0, 114, 178].map((c) => Math.round(c + (235 - c) * Math.min(Math.log2(over) / 3, 1)))})` : '#8883';
        const ink = one.fits ? (over < 1.9 ? '#fff' : '#222') : 'currentColor';
        parts.push(tag('g', {'data-cell': `${tp},${pp}`, tabindex: 0, role: 'button', style: 'cursor:pointer',
          'aria-label': `tp ${tp}, pp ${pp}: ${digits(one.time)} s, ${digits(one.held)} GB`},
          box(x + 1, y + 1, w - 2, h - 2, fill) + (w > 33 ? text(x + w / 2, y + 19, digits(one.time, w > 44 ? 3 : 2), 'middle', ink) : '')
          + (one === chosen ? tag('rect', {x: r1(x + 2), y: r1(y + 2), width: r1(w - 4), height: h - 4, fill: 'none', stroke: RED, 'stroke-width': 3}) : '')));
      }
      const {tp, pp, dp, size} = chosen.run, bars = [box(0, 0, width, 22, IDLE), ...stacked(chosen.parts, 0, 0, width / chosen.time, 22, seconds)];
      const against = !best ? 'Nothing fits.' : chosen === best ? 'This is the fastest that fits.'
        : chosen.fits ? `${digits(chosen.time / best.time)} times the fastest that fits.` : `It needs ${digits(chosen.held - capacity)} GB more than a GPU has.`;
      return {picture: picture(width, height, parts, 'iteration time of every tp and pp') + picture(width, 24, bars, 'parts of the time') + named(chosen.parts),
        words: `tp ${tp} x pp ${pp} x dp ${dp}, micro-batches of ${size}: <b>${digits(chosen.time, 4)} s</b> an iteration of ${PLAY.batch} samples, ${digits(chosen.held)} of ${capacity} GB. ${against} Grey cells do not fit; click any.`};
    },
  };

  const zero = {
    controls: () => [['model', models], ['tp', TENSOR, 8], ['pp', [1, 2, 4, 8, 16], 1], ['copies (dp)', powers(0, 10), 64], ['system', names, 'H200-141GB']],
    figures: (s) => range(4).map((stage) => memory(PLAY.models[s.model], stage, s.tp, s.pp, s['copies (dp)'], 1e9, 1)),
    show(s, width) {
      const all = this.figures(s), sums = all.map(total), capacity = PLAY.systems[s.system].capacity;
      const most = Math.max(...sums, capacity) * 1.02, left = 62, scale = (width - left) / most, parts = [], dp = s['copies (dp)'];
      for (const [stage, one] of all.entries()) parts.push(
        text(left - 8, 40 * stage + 22, `ZeRO ${stage}`, 'end'), ...stacked(one, left, 40 * stage + 3, scale, 28, (GB) => `${digits(GB)} GB`));
      parts.push(line(left + capacity * scale, 0, left + capacity * scale, 156, RED, 2), text(left + capacity * scale - 5, 170, `${capacity} GB`, 'end', RED));
      const fits = sums.findIndex((GB) => GB <= capacity);
      const told = sums.map((GB, stage) => `${stage}: ${digits(GB)} GB, sends ${digits(all[0].weights * sent(stage, dp))} GB`).join('; ');
      return {picture: picture(width, 176, parts, 'memory by ZeRO stage') + named(all[0]),
        words: `${fits < 0 ? 'No stage fits.' : `The first stage that fits is <b>${fits}</b>.`} By stage, ${told} a step at least.`};
    },
  };

  const run = {
    controls: () => [['model', models], ['system', names, 'H200-141GB'], ['tensor parallel (tp)', TENSOR, 8],
      ['pipeline stages (pp)', STAGES, 4], ['copies (dp)', powers(0, 10), 16], ['samples of a micro-batch', SIZES],
      ['micro-batches of a copy', powers(0, 8), 32], ['chunks of a stage', [1, 2, 4]], ['recompute', AGAIN], ['ZeRO stage', [0, 1, 2, 3], 1]],
    figures: (s) => runOf(s.model, s.system, {tp: s['tensor parallel (tp)'], pp: s['pipeline stages (pp)'], dp: s['copies (dp)'],
      N: s['micro-batches of a copy'], size: s['samples of a micro-batch'], v: s['chunks of a stage'], stage: s['ZeRO stage'], again: s.recompute}),
    show(s, width) {
      const f = this.figures(s), model = PLAY.models[s.model], system = PLAY.systems[s.system];
      if (f.why) return {picture: '', words: `Impossible: ${f.why}`};
      const {tp, pp, dp, N, size} = f.run, GPUs = tp * pp * dp, batch = dp * N * size, rate = batch * model.tokens / f.time / GPUs;
      const most = Math.max(f.held, system.capacity) * 1.02, scale = width / most, at = system.capacity * scale;
      const GB = (x) => `${digits(x)} GB`, held = [box(0, 18, width, 30, IDLE), ...stacked(f.GB, 0, 18, scale, 30, GB),
        line(at, 10, at, 56, RED, 2), text(Math.max(at - 5, 110), 12, `a GPU has ${system.capacity} GB`, 'end', RED), text(0, 12, 'memory')];
      const took = [...stacked(f.parts, 0, 18, width / f.time, 30, seconds), text(0, 12, 'time of an iteration')];
      const [most_of, longest] = Object.entries(f.parts).filter(([name]) => name !== 'compute').reduce((a, b) => (a[1] >= b[1] ? a : b));
      const room = f.fits ? 'it fits.' : `<b>${GB(f.held - system.capacity)} too much.</b>`;
      return {picture: picture(width, 58, held, `memory: ${GB(f.held)}`) + named(f.GB) + picture(width, 52, took, `time: ${seconds(f.time)}`) + named(f.parts),
        words: `<b>${seconds(f.time)}</b> for ${batch.toLocaleString('en-US')} samples on ${GPUs.toLocaleString('en-US')} GPUs: ${digits(rate, 4)} tokens/s a GPU, `
          + `MFU ${percent(rate * model.TFLOP / system.matrix)}. ${GB(f.held)} of memory: ${room} Beside compute, most goes to ${most_of}, ${percent(longest / f.time)}. `
          + `An NVLink domain holds ${number(f.near, 'stage', 'stages')} of ${number(f.d, 'copy', 'copies')}.`};
    },
  };

  // what travels: columns are GPUs, rows are parts of an array, or the keys of each GPU
  const ASKED = {
    'all-gather': (n) => ['How much of the array has a GPU sent in the end?', `${n - 1}/${n} of it, one part a step: ${n - 1} steps.`],
    'reduce-scatter': (n) => ['Who holds which sum in the end, and what was sent?', `GPU i holds the sum of part i. Each has sent ${n - 1}/${n} of the array.`],
    'all-to-all': (n) => ['How much does a GPU send?', `${n - 1}/${n} of what it has; its own part stays. Rows become columns.`],
    'ring attention': (n) => ['With a causal mask, what do GPUs do in the last step?', `Only GPU ${n} still has keys to look at that came before its tokens: this is why kernels deal tokens in zigzags.`],
  };
  const travel = {
    controls: () => [['what', Object.keys(ASKED)], ['GPUs', [2, 3, 4, 5, 6, 7, 8], 4], ['step', range(8), 1]],
    steps: (s) => (s.what === 'all-to-all' ? 1 : s.GPUs - 1),
    show(s, width, moves) {
      const n = s.GPUs, step = Math.min(s.step, this.steps(s)), now = travelled(s.what, n, step);
      const left = 62, w = Math.min((width - left) / n, 90), h = 24, parts = [], ring = s.what === 'ring attention';
      for (const i of range(n)) parts.push(text(left + w * (i + .5), 13, `GPU ${i + 1}`, 'middle'), text(left - 8, 22 + h * (i + .7), `${ring ? 'keys' : 'part'} ${i + 1}`, 'end'));
      for (const i of range(n)) for (const j of range(n)) {
        const {much, from} = now[i][j], x = left + w * i + 3, y = 22 + h * j + 2;
        parts.push(box(x, y, w - 6, h - 4, IDLE));
        if (!much) continue;
        const there = from === null ? '' : tag('animateTransform', {attributeName: 'transform', type: 'translate', from: `${r1(w * (from[0] - i))} ${h * (from[1] - j)}`, to: '0 0', dur: '0.8s'});
        parts.push(tag('rect', {x: r1(x), y, width: r1(w - 6), height: h - 4, fill: from === null ? BLUE : GREEN, 'fill-opacity': Math.max(much, .15)}, moves ? there : ''));
      }
      const [question, answer] = ASKED[s.what](n), terms = s.what === 'reduce-scatter' ? ' The darker, the more terms are summed.' : '';
      return {picture: picture(width, 26 + h * n, parts, `${s.what}, step ${step}`) + legend([[BLUE, ring ? 'attended' : 'there'], [GREEN, 'just arrived']]),
        words: `Step ${step} of ${this.steps(s)}.${terms} <details><summary><b>Predict:</b> ${question}</summary>${answer}</details>`};
    },
  };

  // a widget: controls, a picture, a sentence; what differs from its start stands in the address
  const WIDGETS = {run, travel, ring, roofline, bubble, map, zero};
  const inAddress = () => new URLSearchParams(location.hash.startsWith('#?') ? location.hash.slice(2) : '');
  function toAddress(name, changes) {
    const all = new URLSearchParams([...inAddress()].filter(([key]) => !key.startsWith(`${name}.`)));
    for (const [key, value] of changes) all.set(`${name}.${key}`, value);
    history.replaceState(null, '', `#${all.size ? `?${all}` : ''}`);
  }
  function control([name, options, usual = options[0], shown = String], state, changed) {
    const label = document.createElement('label'), numbers = typeof options[0] === 'number' && options.length > 3;
    const input = document.createElement(numbers ? 'input' : 'select'), output = document.createElement('output');
    input.dataset.control = name;
    if (numbers) Object.assign(input, {type: 'range', min: 0, max: options.length - 1, step: 1});
    else input.append(...options.map((option) => new Option(option, option)));
    const put = (value) => {
      state[name] = value;
      input.value = numbers ? options.indexOf(value) : value;
      output.textContent = numbers ? shown(value) : '';
    };
    const read = (words) => options.find((option) => String(option) === words) ?? usual;   // what is no option is not taken
    input.addEventListener('input', () => { put(numbers ? options[input.value] : read(input.value)); changed(); });
    label.append(Object.assign(document.createElement('span'), {textContent: name}), input, output);
    return {name, label, put, read, usual};
  }
  const button = (words, does) => Object.assign(document.createElement('button'), {type: 'button', textContent: words, onclick: does});
  const still = () => matchMedia('(prefers-reduced-motion: reduce)').matches;
  function start(host, name) {
    const widget = WIDGETS[name], state = {}, form = document.createElement('form'), view = document.createElement('div');
    const draw = (moves = false) => {
      const {picture, words} = widget.show(state, Math.max(host.clientWidth, 280), moves && !still());
      view.innerHTML = `<div class="picture">${picture}</div><div class="words" aria-live="polite">${words}</div>`;
    };
    const changed = () => {
      const told = controls.filter(({name, usual}) => state[name] !== usual).map(({name}) => [name, state[name]]);
      toAddress(name, state.chosen ? [...told, ['chosen', state.chosen.join()]] : told);
      draw(true);
    };
    const controls = widget.controls().map((one) => control(one, state, changed));
    const load = (said) => {
      for (const {name: key, put, read, usual} of controls) put(said.has(`${name}.${key}`) ? read(said.get(`${name}.${key}`)) : usual);
      state.chosen = said.get(`${name}.chosen`)?.split(',').map(Number);
      draw();
    };
    const choose = (event) => {
      const cell = event.target.closest('[data-cell]');
      if (!cell || (event.key && event.key !== 'Enter' && event.key !== ' ')) return;
      event.preventDefault();
      state.chosen = cell.dataset.cell.split(',').map(Number);
      changed();
      view.querySelector(`[data-cell="${cell.dataset.cell}"]`).focus();
    };
    form.append(...controls.map(({label}) => label), button('reset', () => { load(new Map()); changed(); }));
    if (widget.steps) {
      const step = controls.find(({name}) => name === 'step');
      const go = (i) => { step.put(i); changed(); if (i < widget.steps(state)) state.timer = setTimeout(go, 1200, i + 1); };
      form.append(button('play', () => { clearTimeout(state.timer); go(0); }));
      form.addEventListener('input', () => clearTimeout(state.timer));
    }
    form.addEventListener('submit', (event) => event.preventDefault());
    view.addEventListener('click', choose);
    view.addEventListener('keydown', choose);
    host.replaceChildren(form, view);
    load(inAddress());
    new ResizeObserver(() => { if (host.clientWidth !== host.drawn) { host.drawn = host.clientWidth; draw(); } }).observe(host);
    window.addEventListener('hashchange', () => load(inAddress()));
    if ([...inAddress().keys()].some((key) => key.startsWith(`${name}.`))) host.scrollIntoView();
    host.state = state;
  }

  // the first page: a pipeline that is carried out before one's eyes
  function hero(host) {
    const {p, N, F, B} = PLAY.hero, run = played('1f1b', p, 1, N, F, B, 0);
    const width = Math.max(host.clientWidth, 280), height = 24 * p;
    const {parts} = pipeline(run, p, 1, width, height);
    const [rows, passes] = [parts.slice(0, 2 * p), parts.slice(2 * p)];
    host.innerHTML = picture(width, height, [...rows, tag('g', {class: 'unrolled'}, passes.join(''))], 'a pipeline at work')
      + passesIn(run);
  }

  window.Play = {WIDGETS};
  window.addEventListener('DOMContentLoaded', () => {
    for (const host of document.querySelectorAll('[data-widget]')) start(host, host.dataset.widget);
    for (const host of document.querySelectorAll('[data-hero]')) {
      hero(host);
      new ResizeObserver(() => hero(host)).observe(host.parentElement);
    }
  });
})();
