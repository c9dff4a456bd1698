//! The two formats of `/metrics`: OpenMetrics 1.0, and the text format 0.0.4 of Prometheus, which is
//! what a scraper reads that requests no other format.

use std::fmt::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exposition {
    /// Prometheus text, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl Exposition {
    /// Returns the format that the header `Accept` prefers; text if it is empty.
    ///
    /// Invariant: OpenMetrics is sent only to a scraper that names it. Its counters have other names
    /// than their samples, which a reader of the text format takes for metrics without a type.
    pub(super) fn of(accept: &str) -> Self {
        let ranges: Vec<MediaRange<'_>> = accept.split(',').filter_map(MediaRange::parse).collect();
        let weight = |is_wanted: &dyn Fn(&MediaRange<'_>) -> bool| {
            ranges.iter().filter(|range| is_wanted(range)).map(|range| range.permille).max()
        };
        let open = weight(&|range| range.is_open_metrics()).unwrap_or(0);
        let text = weight(&|range| range.is_text()).unwrap_or(0);
        match open > 0 && open >= text {
            true => Self::OpenMetrics,
            false => Self::Text,
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    pub(super) fn format(self, open_metrics: String) -> String {
        match self {
            Self::Text => text(&open_metrics),
            Self::OpenMetrics => open_metrics,
        }
    }
}

struct MediaRange<'a> {
    name: &'a str,
    version: Option<&'a str>,
    /// Weight in thousandths; 0 refuses the type.
    permille: u32,
}

impl<'a> MediaRange<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let mut range = Self { name: parts.next()?, version: None, permille: 1000 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                "version" => range.version = Some(value),
                // A weight that cannot be read refuses the type.
                "q" => {
                    let weight = value.parse::<f64>().ok().filter(|q| (0.0..=1.0).contains(q));
                    range.permille = weight.map_or(0, |weight| (weight * 1000.0) as u32);
                }
                _ => {}
            }
        }
        Some(range)
    }

    fn is_open_metrics(&self) -> bool {
        self.name.eq_ignore_ascii_case("application/openmetrics-text")
            && matches!(self.version, None | Some("1.0.0"))
    }

    fn is_text(&self) -> bool {
        self.name.eq_ignore_ascii_case("text/plain")
    }
}

#[derive(Default)]
struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    help: Option<&'a str>,
}

/// Converts OpenMetrics to the text format. The registry has no exemplars, which the text format does
/// not know.
fn text(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    let mut family = Family::default();
    let mut is_described = false;
    for line in open_metrics.lines() {
        if let Some(described) = line.strip_prefix("# ") {
            let (word, rest) = described.split_once(' ').unwrap_or((described, ""));
            let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
            if name != family.name {
                (family, is_described) = (Family { name, ..Family::default() }, false);
            }
            match word {
                "HELP" => family.help = Some(value),
                "TYPE" => family.kind = value,
                // The text format has no units, and no line at the end.
                _ => {}
            }
            continue;
        }
        if !std::mem::replace(&mut is_described, true) {
            family.describe(&mut out);
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

impl Family<'_> {
    /// Writes the lines before the samples: the family has the name that its samples have.
    fn describe(&self, out: &mut String) {
        let (suffix, kind) = match self.kind {
            // bug server.counter_without_its_name: `"_total"` is `""`
            "counter" => ("_total", "counter"),
            "info" => ("_info", "gauge"),
            "stateset" => ("", "gauge"),
            "gaugehistogram" | "unknown" | "" => ("", "untyped"),
            kind => ("", kind),
        };
        // Writing to a string cannot fail.
        if let Some(help) = self.help {
            let _ = writeln!(out, "# HELP {}{suffix} {help}", self.name);
        }
        let _ = writeln!(out, "# TYPE {}{suffix} {kind}", self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_is_sent_to_a_scraper_that_prefers_it_and_text_to_every_other() {
        let open = "application/openmetrics-text";
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                          application/openmetrics-text;version=0.0.1;q=0.5,\
                          text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for wanted in [
            open,
            "Application/OpenMetrics-Text; Version=1.0.0",
            "application/openmetrics-text; version=\"1.0.0\"; charset=utf-8",
            "text/plain;q=0.5, application/openmetrics-text;q=0.5",
            prometheus,
        ] {
            assert_eq!(Exposition::of(wanted), Exposition::OpenMetrics, "{wanted}");
        }
        for wanted in [
            "",
            "*/*",
            "text/html,application/xml;q=0.9,*/*;q=0.8",
            "text/plain;version=0.0.4",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=x",
            "application/openmetrics-text;q=0.3,text/plain;q=0.4",
            ",;,=",
        ] {
            assert_eq!(Exposition::of(wanted), Exposition::Text, "{wanted}");
        }
    }

    #[test]
    fn a_family_has_the_name_of_its_samples_in_the_text_format() {
        let open = "\
# HELP stele_reads Reads.
# TYPE stele_reads counter
stele_reads_total{by=\"a # b\"} 3
stele_reads_total{by=\"c\"} 4
# HELP stele_wait_seconds Waits.
# TYPE stele_wait_seconds histogram
# UNIT stele_wait_seconds seconds
stele_wait_seconds_sum 0.5
stele_wait_seconds_count 1
stele_wait_seconds_bucket{le=\"+Inf\"} 1
# HELP stele_open Open.
# TYPE stele_open gauge
stele_open 2
# EOF
";
        let expected = "\
# HELP stele_reads_total Reads.
# TYPE stele_reads_total counter
stele_reads_total{by=\"a # b\"} 3
stele_reads_total{by=\"c\"} 4
# HELP stele_wait_seconds Waits.
# TYPE stele_wait_seconds histogram
stele_wait_seconds_sum 0.5
stele_wait_seconds_count 1
stele_wait_seconds_bucket{le=\"+Inf\"} 1
# HELP stele_open Open.
# TYPE stele_open gauge
stele_open 2
";
        assert_eq!(Exposition::Text.format(open.to_owned()), expected);
        assert_eq!(Exposition::OpenMetrics.format(open.to_owned()), open);
    }
}
