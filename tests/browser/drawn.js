// Reads from Vega's scenegraph what a chart shows, in the units of its data.
//
// Returns {mark name: {type, items, palettes}}. Each item has the positions x, y (and x2, y2 of bars, rules and
// areas) inverted through the chart's own scales, its text, its colour and its shape. The data that a mark was made
// from is never looked at: a right datum drawn at a wrong place reads as the wrong value.
(figure) => {
  const view = figure.explorer.view;
  const DECORATION = /^(axis|legend|title|header|row|column|group)/;
  const PALETTES = { color: "color", fill: "fill", stroke: "stroke", shape: "shape", strokeDash: "strokeDash" };

  // A scale is named for its channel, after the part of the chart it belongs to: x, concat_0_x, ...
  function scaleOf(name, channel) {
    const parts = name.split("_");
    for (let length = parts.length; length >= 0; length -= 1) {
      try {
        return view.scale([...parts.slice(0, length), channel].join("_"));
      } catch {
        // no such scale for this part: try the part around it
      }
    }
    return null;
  }

  function value(scale, near, far) {
    if (!scale) return near;
    if (scale.type === "band" || scale.type === "point") {
      const middle = (near + far) / 2;
      const width = scale.bandwidth();
      const found = scale.domain().find((one) => middle >= scale(one) - 0.01 && middle <= scale(one) + width + 0.01);
      return found === undefined ? `nowhere: ${middle}` : found;
    }
    return Number(scale.invert(near));
  }

  function span(item, scale, at, size, second, output, names) {
    if (item[at] === undefined && item[second] === undefined) return;
    const near = item[at] ?? 0;
    const far = item[second] !== undefined && item[second] !== null ? item[second]
      : item[size] ? near + item[size] : near;
    output[names[0]] = value(scale, near, far);
    const discrete = scale && (scale.type === "band" || scale.type === "point");
    if (far !== near && !discrete) output[names[1]] = value(scale, far, near);
  }

  function shown(item) {
    return item.opacity !== 0 && item.defined !== false && item.text !== "";
  }

  function read(item, mark, scales) {
    const output = {};
    const box = mark.marktype === "rect" || mark.marktype === "image";
    const two = ["rule", "area"].includes(mark.marktype);
    span(item, scales.x, "x", box ? "width" : "", two ? "x2" : "", output, ["x", "x2"]);
    span(item, scales.y, "y", box ? "height" : "", two ? "y2" : "", output, ["y", "y2"]);
    if (mark.marktype === "text") output.text = [item.text].flat().join("\n");
    const empty = [undefined, null, "transparent", "none"];
    output.color = empty.includes(item.fill) ? item.stroke : item.fill;
    for (const channel of ["shape", "size", "opacity", "strokeDash", "angle"]) {
      if (item[channel] !== undefined) output[channel] = item[channel];
    }
    return output;
  }

  function palettes(name) {
    const found = {};
    for (const [channel, scaleName] of Object.entries(PALETTES)) {
      const scale = scaleOf(name, scaleName);
      if (scale && scale.type === "ordinal") {
        found[channel] = scale.domain().map((one) => [one, scale(one)]);
      }
    }
    return found;
  }

  const marks = {};
  function walk(group) {
    for (const mark of group.items) {
      if (DECORATION.test(mark.role ?? "")) continue;
      if (mark.marktype === "group") {
        for (const item of mark.items) walk(item);
        continue;
      }
      const name = (mark.name ?? "marks").replace(/_?marks$/, "") || "marks";
      const scales = { x: scaleOf(mark.name ?? "", "x"), y: scaleOf(mark.name ?? "", "y") };
      marks[name] ??= { type: mark.marktype, items: [], palettes: palettes(mark.name ?? "") };
      for (const item of mark.items) {
        if (shown(item)) marks[name].items.push(read(item, mark, scales));
      }
    }
  }
  for (const item of view.scenegraph().root.items) walk(item);
  return marks;
}
