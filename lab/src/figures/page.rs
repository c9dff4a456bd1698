//! One page with all figures, without external resources.

use super::limits::{behind_all, behind_papers, words};
use super::numbers::{Shown, Spread};
use super::plot::{Bar, bars, colour, curves, escaped, short};
use std::fmt::Write;

const HEAD: &str = "<!doctype html><meta charset=utf-8><title>Stele: figures</title>\
    <style>body{font:15px sans-serif;margin:2em;max-width:60em}table{border-collapse:collapse}\
    td,th{padding:.3em .8em;border-bottom:1px solid #ccc;text-align:right}\
    td:first-child,th:first-child{text-align:left}small{color:#57606a}\
    h2{margin-top:2em}</style><h1>Stele: figures</h1>\n";

/// Length of a slice of a curve, unless the figure states another.
const SLICE_MS: u64 = 100;

/// Notes that apply to all figures.
#[derive(Debug, Default)]
pub(super) struct Header {
    /// Differences from the papers; first on the page.
    pub left_out: Vec<String>,
    pub setup: Vec<String>,
    pub failed: Vec<String>,
}

pub(super) fn page(header: &Header, shown: &[Shown<'_>], ours: &str) -> String {
    let mut page = HEAD.to_owned();
    list(&mut page, "Differences from the papers", &header.left_out);
    list(&mut page, "Failed", &header.failed);
    let behind = [behind_papers(shown), behind_all(shown)].concat();
    let title = format!("Limits: where {ours} is behind a paper or another system");
    match behind.is_empty() {
        true => {
            let _ = writeln!(page, "<h2>{title}</h2><p>In no measured figure.");
        }
        false => list(&mut page, &title, &behind),
    }
    list(&mut page, "How it was measured", &header.setup);
    for figure in shown {
        section(&mut page, figure);
    }
    page
}

fn list(page: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(page, "<h2>{}</h2><ul>", escaped(title));
    for line in lines {
        let _ = writeln!(page, "<li>{}", escaped(line));
    }
    page.push_str("</ul>\n");
}

fn section(page: &mut String, shown: &Shown<'_>) {
    let figure = shown.figure;
    let _ = writeln!(
        page,
        "<h2 id='{0}'>{0}: {1}</h2><p>{2} In {3}; {4} is better.",
        figure.name,
        escaped(&figure.paper),
        escaped(&figure.caption),
        escaped(&figure.unit),
        figure.better.word(),
    );
    table(page, shown);
    if figure.curve.is_some() {
        let lines: Vec<_> = (shown.series.iter().enumerate())
            .map(|(at, series)| (colour(at), shown.curve(series)))
            .collect();
        let slice_ms = figure.curve_slice_ms.unwrap_or(SLICE_MS);
        let unit = figure.curve_unit.clone().unwrap_or_else(|| format!("in {slice_ms} ms"));
        let curves = curves(&lines, slice_ms, &unit);
        let _ = writeln!(page, "<h3>In each {slice_ms} ms of the first round</h3>{curves}");
    }
    let _ = writeln!(page, "<h3>Median, minimum and maximum of the rounds</h3>{}", measured(shown));
    beside(page, shown);
}

fn table(page: &mut String, shown: &Shown<'_>) {
    page.push_str("<table><tr><th>series");
    for place in &shown.places {
        let _ = write!(page, "<th>{}", escaped(place.x));
    }
    for (at, series) in shown.series.iter().enumerate() {
        let colour = colour(at);
        let _ = write!(page, "\n<tr><td><span style=color:{colour}>■</span> {}", escaped(series));
        for place in &shown.places {
            page.push_str("<td>");
            let Some(Spread { median, min, max }) = shown.spread(series, place) else {
                page.push('–');
                continue;
            };
            page.push_str(&short(median));
            if max > min {
                let _ = write!(page, " <small>{}–{}</small>", short(min), short(max));
            }
            if let Some(ratio) = shown.ratio_to_base(series, place) {
                let _ = write!(page, "<br><small>{ratio:.2}×</small>");
            }
            if let Some(busy) = shown.processors_busy(series, place) {
                let _ = write!(page, "<br><small>processors {busy:.0} %</small>");
            }
        }
    }
    page.push_str("</table>\n");
}

fn measured(shown: &Shown<'_>) -> String {
    let bar = |place, (at, series): (usize, &&str)| {
        let spread = shown.spread(series, place)?;
        let title = (*series).to_owned();
        Some(Bar { colour: colour(at), title, spread, is_paper: false })
    };
    let groups: Vec<_> = (shown.places.iter())
        .map(|place| {
            let bars = shown.series.iter().enumerate().filter_map(|it| bar(place, it)).collect();
            (place.x.to_owned(), bars)
        })
        .collect();
    bars(&groups)
}

/// Writes the paper's numbers beside ours: dashed bars beside filled ones.
fn beside(page: &mut String, shown: &Shown<'_>) {
    let claims = &shown.figure.paper_says;
    if claims.is_empty() {
        page.push_str("<p>The paper's texts state no number to compare with.\n");
        return;
    }
    page.push_str("<h3>Beside the paper</h3><table><tr><th>series<th>here<th>the paper");
    let mut groups = Vec::new();
    for claim in claims {
        let Some(theirs) = claim.ratio.or(claim.value) else { continue };
        let name = match &claim.of {
            Some(of) => format!("{} beside {of}", claim.series),
            None => claim.series.clone(),
        };
        let ours = shown.ours(claim);
        let here = ours.map_or("–".to_owned(), |ours| words(shown, claim, ours));
        let (name_text, theirs_text) = (escaped(&name), escaped(&words(shown, claim, theirs)));
        let _ = write!(page, "\n<tr><td>{name_text}<td>{}<td>{theirs_text}", escaped(&here));
        let place = shown.series.iter().position(|series| *series == claim.series);
        let bar = |number, is_paper| Bar {
            colour: colour(place.unwrap_or(COLOURLESS)),
            title: if is_paper { "the paper".to_owned() } else { "here".to_owned() },
            spread: Spread { median: number, min: number, max: number },
            is_paper,
        };
        let both = ours.map(|ours| bar(ours, false)).into_iter().chain([bar(theirs, true)]);
        groups.push((name, both.collect::<Vec<_>>()));
    }
    let _ = writeln!(page, "</table>{}", bars(&groups));
}

/// Place of the grey colour, for a series that was not measured.
const COLOURLESS: usize = 5;

#[cfg(test)]
mod tests {
    use super::super::numbers::tests::{sample, shown};
    use super::*;

    #[test]
    fn the_page_begins_with_what_is_left_out_and_what_is_behind() {
        let (spec, results) = sample();
        let header = Header {
            left_out: vec!["no <RocksDB>".to_owned()],
            setup: vec!["3 rounds".to_owned()],
            failed: Vec::new(),
        };
        let page = page(&header, &shown(&spec, &results), "stele");
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text} in {page}"));
        assert!(at("no &lt;RocksDB>") < at("Limits: where"));
        assert!(at("Limits: where") < at("2.25 times original"));
        assert!(at("2.25 times original") < at("3 rounds"));
        assert!(at("3 rounds") < at("<h2 id='puts'>") && at("'puts'") < at("<h2 id='latency'>"));
        assert!(!page.contains("<h2>Failed") && !page.contains("http"), "{page}");
    }

    #[test]
    fn a_section_holds_table_plot_and_the_papers_number() {
        let (spec, results) = sample();
        let mut page = String::new();
        section(&mut page, &shown(&spec, &results)[0]);
        let golden = "<h2 id='puts'>puts: A paper, figure 1</h2><p>Puts by size. In puts/s; more is better.\n\
            <table><tr><th>series<th>1 KiB<th>16 KiB\n\
            <tr><td><span style=color:#1f6feb>■</span> original\
            <td>100 <small>50.0–110</small><br><small>1.00×</small>\
            <td>10.0 <small>5.00–11.0</small><br><small>1.00×</small>\n\
            <tr><td><span style=color:#d1242f>■</span> stele\
            <td>50.0 <small>25.0–55.0</small><br><small>0.50×</small>\
            <td>40.0 <small>20.0–44.0</small><br><small>4.00×</small></table>\n\
            <h3>Median, minimum and maximum of the rounds</h3><svg";
        assert!(page.starts_with(golden), "{page}");
        let beside = "<h3>Beside the paper</h3><table><tr><th>series<th>here<th>the paper\n\
            <tr><td>stele beside Theirs<td>2.25 times original on average\
            <td>3.00 times original on average</table><svg";
        assert!(page.contains(beside), "{page}");
        assert_eq!(page.matches("<svg").count(), 2);
        let mut page = String::new();
        section(&mut page, &shown(&spec, &results)[1]);
        assert!(page.contains("<polyline") && page.contains("<td>25.0 µs<td>100 µs"), "{page}");
    }

    #[test]
    fn a_page_states_that_nothing_is_behind() {
        let (spec, mut results) = sample();
        results.measured.retain(|it| it.series == "original");
        let page = page(&Header::default(), &shown(&spec, &results), "stele");
        assert!(page.contains("In no measured figure"));
        assert!(page.contains("<td>–"));
    }
}
