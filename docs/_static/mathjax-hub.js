// ipywidgets' html-manager typesets labels through MathJax 2's hub; MathJax 3 does the same under another name.
window.addEventListener('DOMContentLoaded', () => {
  if (window.MathJax && !window.MathJax.Hub) window.MathJax.Hub = {Queue: (call) => window.MathJax.typesetPromise && window.MathJax.typesetPromise([call[2]])};
});
