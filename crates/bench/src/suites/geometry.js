// Looks at pages in frames, and says what a reader could not read. A test puts it beside the frames.
"use strict";
const FONT_MIN = 11;
const found = [];

function frame(element) {
  const page = element.contentDocument, view = element.contentWindow;
  const say = (text) => found.push(`${element.id}: ${text}`);
  if (view.innerWidth !== Number(element.dataset.width)) say(`the frame has ${view.innerWidth} px`);
  if (page.documentElement.scrollWidth > view.innerWidth) {
    say(`the page has ${page.documentElement.scrollWidth} px and is moved sideways`);
  }
  for (const of of page.querySelectorAll("p, li, dt, dd, th, td, h1, h2, h3, summary, figcaption, .legend span")) {
    const pixels = parseFloat(view.getComputedStyle(of).fontSize);
    if (pixels < FONT_MIN) say(`letters of ${pixels.toFixed(1)} px: ${of.textContent.slice(0, 40)}`);
    if (of.scrollWidth > of.clientWidth + 1 && of.clientWidth > 0) say(`cut: ${of.textContent.slice(0, 40)}`);
  }
  for (const table of page.querySelectorAll(".scroll")) {
    const room = table.getBoundingClientRect();
    const heads = [...table.querySelectorAll("th")].slice(0, 4);
    const last = heads.length && heads[heads.length - 1].getBoundingClientRect();
    if (last && last.right > room.right + 1) say(`the fourth column is out of sight: ${heads.map((h) => h.textContent)}`);
  }
  const figures = page.querySelectorAll("figure");
  if (figures.length === 0) say("no picture");
  for (const one of figures) figure(one, view, (text) => say(`${one.querySelector("b").textContent}: ${text}`));
}

function figure(of, view, say) {
  const svg = of.querySelector(":scope > svg");
  ticks(svg, labels(svg, of.getBoundingClientRect(), view, say), say);
}

// The labels of a picture, each whole within the edge, large enough, and beside the others.
function labels(svg, edge, view, say) {
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const texts = [...svg.querySelectorAll("text")].map((text) => ({
    text: text.textContent.trim(),
    box: text.getBoundingClientRect(),
    anchor: text.getAttribute("text-anchor"),
    turned: text.hasAttribute("transform"),
    pixels: parseFloat(view.getComputedStyle(text).fontSize) * scale,
  })).filter((text) => text.text);
  if (texts.length < 3) say(`${texts.length} labels`);
  texts.forEach((a, i) => {
    if (a.pixels < FONT_MIN) say(`letters of ${a.pixels.toFixed(1)} px: ${a.text}`);
    if (a.box.left < edge.left || a.box.right > edge.right || a.box.top < edge.top || a.box.bottom > edge.bottom) {
      say(`cut: ${a.text}`);
    }
    for (const b of texts.slice(i + 1)) {
      const across = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      const down = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
      // The box of a line of text has room above and below its letters.
      const room = (text, is) => (text.turned === is ? 0.35 * text.pixels : 0);
      if (across > Math.max(room(a, true), room(b, true)) && down > Math.max(room(a, false), room(b, false))) {
        say(`${a.text} lies over ${b.text}`);
      }
    }
  });
  return texts;
}

// The last tick of an axis is not before what is drawn.
function ticks(svg, texts, say) {
  const drawn = [...svg.querySelectorAll("circle, rect, polyline")].filter((mark) => {
    const color = mark.getAttribute("fill") + mark.getAttribute("stroke");
    return /var\(--(c|io)\d+\)/.test(color) || mark.localName === "circle";
  }).map((mark) => mark.getBoundingClientRect());
  if (drawn.length === 0) return say("nothing is drawn");
  const below = texts.filter((text) => text.anchor === "middle" && !text.turned);
  const title = Math.max(...below.map((text) => text.box.top));
  const across = below.filter((text) => text.box.top < title);
  const center = (box) => (box.left + box.right) / 2;
  const right = Math.max(...across.map((text) => center(text.box)));
  const farthest = Math.max(...drawn.map((box) => center(box) + (box.width > 12 ? box.width / 2 : 0)));
  if (new Set(across.map((text) => text.text)).size < across.length && across.every((text) => /^[\d.,]+k?$/.test(text.text))) {
    say(`two ticks say the same: ${across.map((text) => text.text)}`);
  }
  if (across.length < 2) say(`${across.length} ticks across`);
  if (farthest > right + 2) say(`drawn ${(farthest - right).toFixed(0)} px beyond the last tick across`);
  const up = texts.filter((text) => text.anchor === "end" && /^[\d.,]+( %|k)?$/.test(text.text));
  if (up.length < 2) return;
  const top = Math.min(...up.map((text) => (text.box.top + text.box.bottom) / 2));
  const highest = Math.min(...drawn.map((box) => (box.height > 12 ? box.top : (box.top + box.bottom) / 2)));
  if (highest < top - 3) say(`drawn ${(top - highest).toFixed(0)} px above the last tick`);
}

addEventListener("load", () => {
  try {
    const frames = document.querySelectorAll("iframe");
    frames.forEach(frame);
    const alone = document.querySelectorAll("div > svg");
    for (const svg of alone) {
      labels(svg, svg.getBoundingClientRect(), window, (text) => found.push(`${svg.parentElement.id}: ${text}`));
    }
    found.unshift(`looked at ${frames.length} pages and ${alone.length} pictures`);
  } catch (error) {
    found.push(String(error.stack));
  }
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = found.join("\n");
  document.body.append(out);
});
