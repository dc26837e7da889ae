// The formulas of the pages `play` and `run`: those of the package's functions, named beside each, line by
// line. tests/test_play.py holds each against its Python function. PLAY are tools/play.py's numbers.
const Formulas = (() => {
  'use strict';

  // two_tier_time of notebook 02: a collective of `kind` on `GB`, n GPUs, d of them in one domain
  function ringTime(system, kind, GB, n, d) {   // s
    if (!(GB > 0)) return 0;
    const whole = kind === 'broadcast' || kind === 'reduce';
    const moved = GB * (whole ? Math.min(n - 1, 1) : (n - 1) / n);
    const turns = kind === 'allreduce' ? 2 : 1, domains = Math.floor(n / d);
    const ring = (rate, latency) => turns * (moved / rate + latency * (n - 1));
    if (d === 1) return ring(system.slow, system.slow_latency);
    if (domains === 1) return ring(system.fast, system.fast_latency);
    const nics = system.nics * d * system.slow;
    return turns * (Math.max(moved / nics, moved / system.fast)
      + system.slow_latency * (domains - 1) + system.fast_latency * (n - domains));
  }

  // roofline of notebook 02, of one product (m, k) x (k, n) in 16 bits
  const LAUNCH = 20e-6, EFFICIENCY = 0.8, ELEMENT = 2e-9;   // s; of the peak; GB of a number
  function product(system, m, n, k) {
    const TFLOP = m * n * (2 * k - 1) / 1e12, GB = ELEMENT * (m * k + k * n + m * n);
    const compute = LAUNCH + TFLOP / system.matrix / EFFICIENCY, memory = GB / system.hbm;
    const time = Math.max(compute, memory);
    return {TFLOP, GB, compute, memory, time, intensity: 1000 * TFLOP / GB, rate: TFLOP / time};
  }

  // notebook 30: orders of work; a step is a list of passes [kind, chunk, micro-batch]
  const range = (n) => Array.from({length: Math.max(n, 0)}, (_, i) => i);

  function* gpipe(rank, p, v, N) {
    if (p === 1) { yield* oneFoneB(rank, p, v, N); return; }   // nothing to wait for
    for (const kind of 'FB') for (const m of range(N)) yield [[kind, 0, m]];
  }
  function* inTurns(turns, back, warm) {
    for (const turn of turns.slice(0, warm)) yield [['F', ...turn]];
    for (const [i, turn] of back.entries()) {
      if (i + warm < turns.length) yield [['F', ...turns[i + warm]]];
      yield [['B', ...turn]];
    }
  }
  function oneFoneB(rank, p, v, N) {
    const after = p - 1 - rank, turns = [];
    for (let g = 0; g < N; g += p)
      for (const c of range(v)) for (const i of range(Math.min(p, N - g))) turns.push([c, g + i]);
    const warm = v === 1 ? after : 2 * after + (v - 1) * p;
    return inTurns(turns, turns.map(([c, m]) => [v - 1 - c, m]), Math.min(warm, turns.length));
  }
  const zeroBubble = (times) => function* (rank, p, v, N) {
    const one = range(N).map((m) => [0, m]), late = times * rank;
    let done = 0;
    for (const [step] of inTurns(one, one, Math.min(times * (p - 1 - rank), N))) {
      yield [step];
      if (step[0] === 'B' && step[2] - done >= late) yield [['W', 0, done++]];
    }
    while (done < N) yield [['W', 0, done++]];
  };

  // the folded pipeline: names the next micro-batch of each kind and chunk, while there is one
  function* zbV(rank, p, v, N) {
    const seen = {F0: 0, F1: 0, B0: 0, B1: 0, W0: 0, W1: 0};
    function* next(...what) {
      for (const name of what) {
        const first = name[0] === 'F' ? null : (name[0] === 'B' ? 'F' : 'B') + name[1];
        if (seen[name] < (first ? seen[first] : N)) yield [[name[0], +name[1], seen[name]++]];
      }
    }
    for (const _ of range(2 * (p - rank) - 1)) yield* next('F0');
    for (const _ of range(rank)) yield* next('F1', 'F0');
    for (const _ of range(p - rank)) yield* next('F1', 'B1', 'W1');
    while (seen.F1 < N) yield* next('F0', 'B0', 'W0', 'F1', 'B1', 'W1');
    for (const _ of range(rank)) yield* next('B0', 'B1');
    while (seen.B0 < N) yield* next('B0', 'W0');
    while (seen.W1 < N || seen.W0 < N) yield* next('W1', 'W0');
  }

  const SCHEDULES = {
    '1f1b': {steps: oneFoneB, chunks: 0},
    'gpipe': {steps: gpipe, chunks: 0},
    'zb-h1': {steps: zeroBubble(1), chunks: 1, splits: true},
    'zb-h2': {steps: zeroBubble(2), chunks: 1, splits: true, least: (p) => 2 * p - 1},
    'zb-v': {steps: zbV, chunks: 2, splits: true, folded: true, least: (p) => 2 * p},
  };

  // whether p ranks with v chunks each can follow a schedule with N micro-batches
  function possible(name, p, v, N) {
    const s = SCHEDULES[name];
    const chunks = s.chunks ? v === s.chunks
      : v === 1 || (name === '1f1b' && p > 1 && N % p === 0);
    return chunks && (p > 1 || s.chunks < 2) && N >= (s.least ? s.least(p) : 1);
  }

  function placeOf(s, p, rank, chunk) {   // in the model, of a rank's chunk
    return s.folded && chunk ? 2 * p - 1 - rank : chunk * p + rank;
  }
  function need(kind, place, m, last) {   // what must be over before, or null
    if (kind === 'F') return place ? `F${place - 1},${m}` : null;
    if (kind === 'W') return `B${place},${m}`;
    return place === last ? `F${place},${m}` : `B${place + 1},${m}`;
  }

  // played of notebook 30, without messages: every pass with its start and its end
  function played(name, p, v, N, F, B, W) {   // F, B, W: s of a chunk
    const s = SCHEDULES[name], cost = s.splits ? {F, B, W} : {F, B: B + W};
    const left = range(p).map((rank) => [...s.steps(rank, p, v, N)].map(([pass]) => pass));
    const over = new Map(), free = Array(p).fill(0), at = Array(p).fill(0), passes = [];
    const last = p * v - 1;
    for (let moved = true; moved;) {
      moved = false;
      for (const rank of range(p)) for (; at[rank] < left[rank].length; at[rank]++) {
        const [kind, chunk, micro] = left[rank][at[rank]], place = placeOf(s, p, rank, chunk);
        const before = need(kind, place, micro, last);
        if (before !== null && !over.has(before)) break;
        const start = Math.max(free[rank], before === null ? 0 : over.get(before));
        free[rank] = start + cost[kind];
        over.set(`${kind}${place},${micro}`, free[rank]);
        passes.push({rank, kind, chunk, place, micro, start, end: free[rank]});
        moved = true;
      }
    }
    return {passes, total: Math.max(...free), busy: v * N * (F + B + W)};
  }

  // memory_at of notebook 87: GB on the fullest GPU of a 1F1B pipeline at a stage of ZeRO
  function memory(model, stage, tp, pp, dp, N, size, v = 1, again = 'none') {   // size: samples
    const {weights, activations} = model.layer[tp], layers = model.depth / pp;
    const whole = layers * weights, share = whole / dp;
    const most = v > 1 ? (2 * (pp - 1) + (v - 1) * pp + 1) / v : pp;   // micro-batches at once
    const gathered = Math.min(layers, 2) * weights;   // in use, or on its way
    return {
      weights: stage === 3 ? Math.min(whole, share + gathered) : whole,
      gradients: stage >= 2 ? share : whole,
      optimizer: 6 * (stage >= 1 ? share : whole),
      activations: Math.min(N, most) * layers * activations[again] * size,
    };
  }

  // exposed of notebook 87b: what n messages of t seconds show behind layers of `layer` seconds
  const exposed = (t, layer, n) => t && t + Math.max(t - layer, 0) * (n - 1);

  // data_parallel_time of notebook 87b: GB of a layer's weights, dp copies, d of them in a domain
  function copiesTime(system, GB, stage, dp, d, layers, N, forward, backward) {   // s
    const take = (kind) => ringTime(system, kind, GB, dp, d);
    const gather = stage ? take('allgather') : 0, again = stage === 3 ? gather : 0;
    const reduce = take(stage ? 'reducescatter' : 'allreduce');
    return exposed(gather, forward, layers * (stage === 3 ? N : 1))
      + exposed(again, backward, layers * N)
      + exposed(reduce, Math.max(backward - again, 0), layers * (stage > 1 ? N : 1));
  }

  // pipeline_time of notebook 87b: GB handed on, pp stages, d of them in a domain
  function handedOn(system, GB, pp, d) {   // s
    if (pp === 1) return 0;
    const slow = pp / d - 1, near = GB / system.fast + system.fast_latency;
    const far = GB / system.slow + system.slow_latency;
    return ((pp - 1 - slow) * near + slow * far) / (pp - 1);
  }

  // iteration_times of notebook 87, of 1F1B: s by parts, at the fastest place of copies and stages
  function iteration(model, system, times, run) {   // times: of a layer; run: its sizes
    const {tp, pp, dp, N, v, stage} = run, layers = model.depth / pp, found = [];
    const [compute, traffic, comm, forward, backward, GB] = times;
    const divisors = (n) => range(n).map((i) => i + 1).filter((i) => n % i === 0);
    for (const near of divisors(pp)) for (const d of divisors(dp)) {
      if (tp * near * d > system.nvlink_size) continue;
      const sent = 2 * v * handedOn(system, GB, pp, near);
      const copies = copiesTime(system, model.layer[tp].weights, stage, dp, d, layers, N, forward, backward);
      const parts = {compute: N * layers * compute, memory: N * layers * traffic, tp: N * layers * comm,
        dp: copies, pp: N * sent, bubble: (pp - 1) / v * (layers * (forward + backward) + sent)};
      found.push({near, d, parts, total: Object.values(parts).reduce((a, b) => a + b)});
    }
    return found.reduce((a, b) => (a.total <= b.total ? a : b));
  }

  // what a step sends, in copies of the weights (notebook 15)
  const sent = (stage, dp) => (stage === 3 ? 3 : 2) * (dp - 1) / dp;

  // rings of notebook 84: of each GPU and each part, how much of it is there, and from where it came
  // just now ([GPU, part], or null); `much` of a sum is the share of its terms
  function travelled(what, n, step) {   // [GPU][part]: {much, from}
    const mod = (x) => (x % n + n) % n, before = (i) => mod(i - 1);
    return range(n).map((i) => range(n).map((j) => {
      if (what === 'all-to-all') return {much: 1, from: step && i !== j ? [j, i] : null};
      if (what === 'reduce-scatter') {   // part j starts at the GPU after j, and comes to j in the end
        const t = mod(i - j - 1), gone = t < step;   // handed on, and no longer of use
        if (t === step && step) return {much: (step + 1) / n, from: [before(i), j]};
        return {much: gone ? 0 : 1 / n, from: null};
      }
      const t = mod(i - j);   // after so many steps part j, or its keys, come to GPU i
      if (t > step || (what === 'ring attention' && j > i)) return {much: 0, from: null};
      return {much: 1, from: t === step && step ? [before(i), j] : null};
    }));
  }

  return {travelled, ringTime, product, played, possible, memory, sent, iteration, SCHEDULES, range, LAUNCH, EFFICIENCY};
})();
