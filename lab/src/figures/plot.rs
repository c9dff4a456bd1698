//! Plots as SVG.

use super::numbers::Spread;
use std::fmt::Write;

const COLOURS: [&str; 6] = ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a"];
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 220.0;
const TOP: f64 = 20.0;
/// Share of a group's width that stays free.
const GAP: f64 = 0.2;
/// Ratio of the largest to the smallest bar from which the scale is logarithmic.
const LINEAR_MAX: f64 = 50.0;

pub(super) fn colour(place: usize) -> &'static str {
    COLOURS.get(place % COLOURS.len()).unwrap_or(&"black")
}

/// One bar: its series, its height, and whether it is a paper's.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub colour: &'static str,
    pub title: String,
    pub spread: Spread,
    pub is_paper: bool,
}

pub(super) fn bars(groups: &[(String, Vec<Bar>)]) -> String {
    let all = || groups.iter().flat_map(|(_, bars)| bars);
    let largest = all().map(|bar| bar.spread.max).fold(0.0, f64::max);
    let smallest = all().map(|bar| bar.spread.min).filter(|it| *it > 0.0).fold(largest, f64::min);
    if largest <= 0.0 {
        return String::new();
    }
    let is_log = largest > smallest * LINEAR_MAX;
    let height = |value: f64| match is_log {
        // Keeps the smallest bar visible, at a tenth of the height.
        true => {
            HEIGHT * (0.1 + 0.9 * (value.max(smallest) / smallest).ln() / (largest / smallest).ln())
        }
        false => HEIGHT * value / largest,
    };
    let mut svg = open();
    let note = if is_log { " (logarithmic)" } else { "" };
    let _ = write!(svg, "<text x=0 y=12>{}{note}</text>", short(largest));
    let group_width = WIDTH / groups.len() as f64;
    for (at, (name, bars)) in groups.iter().enumerate() {
        let left = group_width * (at as f64 + GAP / 2.0);
        let width = group_width * (1.0 - GAP) / bars.len().max(1) as f64;
        for (number, bar) in bars.iter().enumerate() {
            one_bar(&mut svg, bar, left + width * number as f64, width, &height);
        }
        let middle = group_width * (at as f64 + 0.5);
        let below = TOP + HEIGHT + 16.0;
        let _ = write!(
            svg,
            "<text x={middle:.1} y={below} text-anchor=middle>{}</text>",
            escaped(name)
        );
    }
    svg + "</svg>"
}

fn one_bar(svg: &mut String, bar: &Bar, left: f64, width: f64, height: &impl Fn(f64) -> f64) {
    let y = |value: f64| TOP + HEIGHT - height(value);
    let Spread { median, min, max } = bar.spread;
    let style = match bar.is_paper {
        true => format!("fill=none stroke='{}' stroke-dasharray='4 3'", bar.colour),
        false => format!("fill='{}'", bar.colour),
    };
    let _ = write!(
        svg,
        "<rect x={left:.1} y={:.1} width={:.1} height={:.1} {style}><title>{}: {}</title></rect>",
        y(median),
        (width - 2.0).max(1.0),
        height(median),
        escaped(&bar.title),
        short(median),
    );
    if max > min {
        let middle = left + width / 2.0 - 1.0;
        let (from, to) = (y(min), y(max));
        let _ = write!(svg, "<path d='M{middle:.1} {from:.1}V{to:.1}' stroke=black />");
    }
}

pub(super) fn curves(lines: &[(&'static str, Vec<f64>)], slice_ms: u64, unit: &str) -> String {
    let all = || lines.iter().flat_map(|(_, values)| values);
    let top = all().copied().fold(0.0, f64::max);
    let longest = lines.iter().map(|(_, values)| values.len()).max().unwrap_or(0).max(2);
    if top <= 0.0 {
        return String::new();
    }
    let mut svg = open();
    let _ = write!(svg, "<text x=0 y=12>{} {}</text>", short(top), escaped(unit));
    for (colour, values) in lines {
        let point = |(slice, value): (usize, &f64)| {
            let x = WIDTH * slice as f64 / (longest - 1) as f64;
            format!("{x:.1},{:.1}", TOP + HEIGHT * (1.0 - value / top))
        };
        let points: Vec<String> = values.iter().enumerate().map(point).collect();
        let _ =
            write!(svg, "<polyline fill=none stroke='{colour}' points='{}'/>", points.join(" "));
    }
    let (seconds, below) = ((longest as u64 * slice_ms) as f64 / 1e3, TOP + HEIGHT + 16.0);
    let _ = write!(svg, "<text x={} y={below} text-anchor=end>{seconds} s</text>", WIDTH - 2.0);
    svg + "</svg>"
}

fn open() -> String {
    let height = TOP + HEIGHT + 24.0;
    format!("<svg viewBox='0 0 {WIDTH} {height}' width={WIDTH}>")
}

/// Formats three digits, with separated thousands.
pub(super) fn short(value: f64) -> String {
    if value < 9.995 {
        return format!("{value:.2}");
    }
    if value < 99.95 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let apart = |(at, digit): (usize, char)| {
        let comma = at > 0 && (digits.len() - at).is_multiple_of(3);
        [comma.then_some(','), Some(digit)].into_iter().flatten()
    };
    digits.chars().enumerate().flat_map(apart).collect()
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(median: f64, is_paper: bool) -> Bar {
        let spread = Spread { median, min: median, max: median };
        Bar { colour: colour(0), title: "a<b".to_owned(), spread, is_paper }
    }

    #[test]
    fn bars_have_heights_in_proportion() {
        let svg = bars(&[("one".to_owned(), vec![bar(10.0, false), bar(5.0, true)])]);
        assert_eq!(
            svg,
            "<svg viewBox='0 0 900 264' width=900><text x=0 y=12>10.0</text>\
             <rect x=90.0 y=20.0 width=358.0 height=220.0 fill='#1f6feb'>\
             <title>a&lt;b: 10.0</title></rect>\
             <rect x=450.0 y=130.0 width=358.0 height=110.0 fill=none stroke='#1f6feb' \
             stroke-dasharray='4 3'><title>a&lt;b: 5.00</title></rect>\
             <text x=450.0 y=256 text-anchor=middle>one</text></svg>"
        );
        assert_eq!(bars(&[]), "");
    }

    #[test]
    fn far_apart_values_are_drawn_by_their_logarithm() {
        let svg =
            bars(&[("one".to_owned(), vec![bar(1e4, false), bar(1e2, false), bar(1.0, false)])]);
        assert!(svg.contains("logarithmic"), "{svg}");
        assert!(svg.contains("height=220.0") && svg.contains("height=121.0"), "{svg}");
        assert!(svg.contains("height=22.0"), "{svg}");
    }

    #[test]
    fn rounds_are_whiskers() {
        let spread = Spread { median: 5.0, min: 2.5, max: 10.0 };
        let svg = bars(&[("x".to_owned(), vec![Bar { spread, ..bar(0.0, false) }])]);
        assert!(svg.contains("<path d='M449.0 185.0V20.0' stroke=black />"), "{svg}");
    }

    #[test]
    fn curves_run_over_the_whole_width() {
        let svg =
            curves(&[(colour(0), vec![0.0, 4.0, 2.0]), (colour(1), vec![1.0])], 100, "in 100 ms");
        assert!(svg.contains("points='0.0,240.0 450.0,20.0 900.0,130.0'"), "{svg}");
        assert!(svg.contains("points='0.0,185.0'") && svg.contains("0.3 s"), "{svg}");
        assert!(svg.contains("<text x=0 y=12>4.00 in 100 ms</text>"), "{svg}");
        assert_eq!(curves(&[(colour(0), vec![0.0])], 100, ""), "");
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.126, 9.994, 9.996, 99.96, 1234.5, 1_234_567.0].map(short);
        assert_eq!(all, ["0.13", "9.99", "10.0", "100", "1,234", "1,234,567"]);
    }
}
