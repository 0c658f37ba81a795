// Run by the build, not by a page: MathJax in an engine without a window, from TeX to HTML.
var document_, adaptor, output;

function begin(fonts) {
  const { TeX } = MathJax._.input.tex_ts;
  const { CHTML } = MathJax._.output.chtml_ts;
  const { TeXFont } = MathJax._.output.chtml.fonts.tex_ts;
  adaptor = MathJax._.adaptors.liteAdaptor.liteAdaptor();
  const handler = MathJax._.handlers.html_ts.RegisterHTMLHandler(adaptor);
  // The same formula in MathML stands hidden beside it, for those who listen.
  MathJax._.a11y["assistive-mml"].AssistiveMmlHandler(handler);
  const input = new TeX({
    packages: ["base", "ams", "newcommand", "boldsymbol", "color"],
    formatError: (_, error) => { throw error; },
  });
  output = new CHTML({ font: new TeXFont({ fontURL: fonts }), adaptiveCSS: true });
  document_ = MathJax._.mathjax.mathjax.document("", { InputJax: input, OutputJax: output });
  return true;
}

function typeset(tex, display) {
  const metrics = { display, em: 16, ex: 8, containerWidth: 1e6 };
  return adaptor.outerHTML(document_.convert(tex, metrics));
}

// The style of what was typeset since `forget`.
function style() {
  return adaptor.textContent(output.styleSheet(document_));
}

function forget() {
  output.clearCache();
  return true;
}
