"""What was measured, as a table, as JSON and as a plot."""

import json
import math
import os
from statistics import median
from xml.sax.saxutils import escape

QUICK = "QUICK: small sizes, one sees that it works. These are no figures."


def spread(values):
    return min(values), median(values), max(values)


def short(value):
    if value >= 100:
        return "%.0f" % value
    return "%.1f" % value if value >= 10 else "%.2f" % value if value >= 0.1 else "%.4f" % value


def span(values):
    return " – ".join(short(v) for v in spread(values))


def cpu_of(values):
    """Processor time alone, if it was taken."""
    found = [getattr(v, "cpu", None) for v in values]
    return found if found and None not in found else None


def wal_of(values):
    """Bytes of WAL, if they were counted."""
    found = [getattr(v, "wal", None) for v in values]
    return found if found and None not in found else None


def compared(row):
    """Each comparison: side, other, what is to be at most the bound (by rounds), bound."""
    for side, other, bound in row.compare:
        mine = row.samples[side]
        if not mine or (other is not None and not row.samples[other]):
            continue
        if other is None:
            values = mine
        else:
            values = [a / b for a, b in zip(mine, row.samples[other])]
        yield side, other, values, bound


def verdict(about, values, bound):
    if bound is None or about["quick"]:
        return ""
    return "reached" if median(values) <= bound else "MISSED"


def table(about, rows):
    """For people: min – median – max over the rounds."""
    out = [""]
    if about["quick"]:
        out += [QUICK, ""]
    out += [about["server"], "%s, %s; locale of the databases: %s; %s rounds"
            % (about["cpu"], about["memory"], about["locale"], about["rounds"]),
            ", ".join("%s = %s" % item for item in about["settings"].items()), "",
            "Each side: min – median – max.  A ratio is of the two sides in the same round.  CPU: the same by the",
            "processor time of the backend alone, which says more where the machine has other work, too.  WAL: bytes",
            "per key.", ""]
    missed = 0
    for row in rows:
        sides = [s for s in row.sides() if row.samples[s]]
        if not sides:
            continue
        width = max(len(s) for s in sides)
        out.append("%s: %s" % (row.name, row.title))
        if row.note:
            out.append("  " + row.note)
        for side in sides:
            cpu, wal = cpu_of(row.samples[side]), wal_of(row.samples[side])
            also = (["CPU " + span(cpu)] if cpu else []) + (["WAL %.0f" % median(wal)] if wal else [])
            out.append("  %-*s  %s %s%s" % (max(width, 44), side, span(row.samples[side]), row.unit,
                                            "   (%s)" % "; ".join(also) if also else ""))
        for side, other, values, bound in compared(row):
            what = side if other is None else "%s / %s" % (side, other)
            said = verdict(about, values, bound)
            tail = "" if bound is None else ("   at most %s: %s" % (bound, said)).rstrip(": ")
            missed += said == "MISSED"
            mine, theirs = cpu_of(row.samples[side]), cpu_of(row.samples[other]) if other else None
            cpu = "   (CPU %s)" % span([a / b for a, b in zip(mine, theirs)]) if mine and theirs else ""
            out.append("    -> %-*s  %s%s%s" % (60, what, span(values), cpu, tail))
        out.append("")
    out.append(QUICK if about["quick"] else "%d missed" % missed)
    return "\n".join(out)


def as_json(about, rows):
    result = dict(about, rows=[])
    for row in rows:
        if not any(row.samples.values()):
            continue
        result["rows"].append({
            "name": row.name, "title": row.title, "unit": row.unit, "note": row.note,
            "sides": {side: {"rounds": v, "min": min(v), "median": median(v), "max": max(v),
                             "cpu": cpu_of(v), "wal": wal_of(v)}
                      for side, v in row.samples.items() if v},
            "curves": getattr(row, "curves", None),
            "compared": [{"side": side, "with": other, "rounds": values, "min": min(values),
                          "median": median(values), "max": max(values), "bound": bound,
                          "reached": None if bound is None else median(values) <= bound}
                         for side, other, values, bound in compared(row)],
        })
    return result


class Svg:
    """As much of SVG as two charts need."""

    def __init__(self, width):
        self.width = width
        self.height = 0
        self.parts = []

    def text(self, x, y, text, size=12, anchor="start", weight="normal", fill="#222"):
        self.parts.append('<text x="%.1f" y="%.1f" font-size="%d" text-anchor="%s" font-weight="%s" fill="%s">%s</text>'
                          % (x, y, size, anchor, weight, fill, escape(text)))

    def line(self, x1, y1, x2, y2, stroke="#999", width=1.0, dash=None):
        self.parts.append('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%.1f"%s/>'
                          % (x1, y1, x2, y2, stroke, width, ' stroke-dasharray="%s"' % dash if dash else ""))

    def bar(self, x, y, width, height, fill):
        self.parts.append('<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>'
                          % (x, y, max(width, 0.5), height, fill))

    def whisker(self, x1, x2, y):
        self.line(x1, y, x2, y, "#222", 1.2)
        for x in (x1, x2):
            self.line(x, y - 3, x, y + 3, "#222", 1.2)

    def __str__(self):
        return ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d"'
                ' font-family="sans-serif"><rect width="100%%" height="100%%" fill="#fff"/>\n%s\n</svg>\n'
                % (self.width, self.height, self.width, self.height, "\n".join(self.parts)))


LEFT, PLOT, RIGHT = 470, 480, 130
OURS, THEIRS, OVER = "#2f6fab", "#b8b8b8", "#c0504d"


def plot_bounds(svg, y, rows):
    """How near its bound each ratio is."""
    lines = [(row, *c) for row in rows for c in compared(row) if c[3] is not None]
    if not lines:
        return y
    svg.text(20, y, "Share of the bound (median, whiskers from min to max; left of the line: reached)",
             14, weight="bold")
    y += 14
    top = y
    limit = max(1.2, max(max(v) / b for _, _, _, v, b in lines))

    def x(share):
        return LEFT + PLOT * share / limit

    for row, side, other, values, bound in lines:
        y += 22
        low, mid, high = (v / bound for v in spread(values))
        label = "%s: %s" % (row.name, "against " + other if other else row.unit)
        svg.text(LEFT - 8, y + 4, label if len(label) < 70 else label[:67] + "…", 11, "end")
        svg.bar(x(0), y - 7, x(mid) - x(0), 14, OURS if mid <= 1 else OVER)
        svg.whisker(x(low), x(high), y)
        svg.text(LEFT + PLOT + 10, y + 4, "%s of %s" % (short(median(values)), bound), 11)
    y += 18
    svg.line(x(1), top, x(1), y, "#222", 1.2, "4 3")
    return y + 30


def plot_sides(svg, y, rows):
    """What each side took; one logarithmic axis for each unit."""
    units = []
    for row in rows:
        if row.unit not in units and row.unit.startswith("µs") and any(row.samples.values()):
            units.append(row.unit)
    for unit in units:
        of_unit = [row for row in rows if row.unit == unit and any(row.samples.values())]
        everything = [v for row in of_unit for s in row.samples.values() for v in s]
        low = 10 ** math.floor(math.log10(max(min(everything), 1e-3)))
        high = 10 ** math.ceil(math.log10(max(everything) * 1.001))

        def x(value):
            return LEFT + PLOT * math.log(max(value, low) / low) / math.log(high / low)

        svg.text(20, y, "%s, logarithmic (median, whiskers from min to max)"
                 % ("µs per key" if unit == "µs" else unit), 14, weight="bold")
        top = y + 8
        y += 8
        for row in of_unit:
            y += 20
            svg.text(20, y + 4, "%s: %s" % (row.name, row.title), 11, weight="bold")
            for side, values in row.samples.items():
                if not values:
                    continue
                y += 17
                svg.text(LEFT - 8, y + 4, side, 11, "end")
                svg.bar(LEFT, y - 5, x(median(values)) - LEFT, 11, OURS if side.startswith("idemq") else THEIRS)
                svg.whisker(x(min(values)), x(max(values)), y)
                svg.text(LEFT + PLOT + 10, y + 4, short(median(values)), 11)
        y += 14
        tick = low
        while tick <= high * 1.0001:
            svg.line(x(tick), y, x(tick), y + 4, "#222")
            svg.text(x(tick), y + 17, "%g" % tick, 10, "middle")
            tick *= 10
        svg.line(LEFT, y, LEFT + PLOT, y, "#222")
        y += 48
    return y


def plot_scale(svg, y, rows):
    """Cost by number of live keys."""
    for row in rows:
        curves = getattr(row, "curves", None)
        if not curves or not any(curves.values()):
            continue
        svg.text(20, y, getattr(row, "curves_title", "µs per claim by million live keys"), 14, weight="bold")
        y += 20
        height = 220
        xs = sorted({n for points in curves.values() for n in points})
        most = max(v for points in curves.values() for values in points.values() for v in values)
        scaled = (lambda n: n) if getattr(row, "curves_linear", False) else math.log
        first, last = scaled(xs[0]), max(scaled(xs[-1]), scaled(xs[0]) + 1e-9)

        def at(n, value):
            return (LEFT + PLOT * (scaled(n) - first) / (last - first), y + height - height * value / most)

        for n in xs:
            svg.text(at(n, 0)[0], y + height + 16, "%g" % n, 10, "middle")
        svg.text(LEFT - 8, y + 8, short(most), 10, "end")
        svg.line(LEFT, y, LEFT, y + height, "#222")
        svg.line(LEFT, y + height, LEFT + PLOT, y + height, "#222")
        for i, (side, points) in enumerate(curves.items()):
            colour = OURS if side.startswith("idemq") else ("#777", "#c0504d", "#9a7")[i % 3]
            before = None
            for n in sorted(points):
                here = at(n, median(points[n]))
                svg.bar(here[0] - 3, here[1] - 3, 6, 6, colour)
                if before:
                    svg.line(*before, *here, stroke=colour, width=2)
                before = here
            if before:
                svg.text(before[0] + 8, before[1] + 4, side[:24], 10, fill=colour)
        y += height + 50
    return y


def as_svg(about, rows):
    svg = Svg(LEFT + PLOT + RIGHT)
    svg.text(20, 28, "idemq: what a claim and an event cost", 18, weight="bold")
    svg.text(20, 48, "%s · %s · %s · locale %s · %d rounds"
             % (about["when"], about["server"].split(" (")[0], about["cpu"], about["locale"], about["rounds"]), 11)
    y = 80
    if about["quick"]:
        svg.text(20, 68, QUICK, 12, weight="bold", fill=OVER)
        y = 96
    y = plot_bounds(svg, y, rows)
    y = plot_sides(svg, y, rows)
    y = plot_scale(svg, y, rows)
    svg.height = y
    return str(svg)


def write(prefix, about, rows):
    """All that there is by now; a run that is stopped leaves what it had."""
    for ext, text in (("json", json.dumps(as_json(about, rows), indent=1, ensure_ascii=False)),
                      ("svg", as_svg(about, rows))):
        with open("%s.%s.new" % (prefix, ext), "w", encoding="utf-8") as f:
            f.write(text)
        os.replace("%s.%s.new" % (prefix, ext), "%s.%s" % (prefix, ext))
