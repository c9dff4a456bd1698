//! Strict parser of the two formats of `/metrics`: what is not allowed in the format is an error.

use std::collections::{BTreeMap, BTreeSet};

/// Reads a scrape; returns the type of each family by its name. `is_open_metrics` chooses the format.
pub(crate) fn parse(text: &str, is_open_metrics: bool) -> Result<BTreeMap<String, String>, String> {
    let body = match is_open_metrics {
        true => text.strip_suffix("# EOF\n").ok_or("no `# EOF` at the end")?,
        false => text,
    };
    if !body.ends_with('\n') {
        return Err("the last line does not end".to_owned());
    }
    let mut families: Vec<Family> = Vec::new();
    let mut series = BTreeSet::new();
    for line in body.lines() {
        let refuse = |reason: &str| Err(format!("{reason}: `{line}`"));
        if let Some(described) = line.strip_prefix("# ") {
            let (word, rest) = described.split_once(' ').ok_or(format!("no word: `{line}`"))?;
            let (name, value) = rest.split_once(' ').ok_or(format!("no value: `{line}`"))?;
            if !is_name(name) {
                return refuse("no name");
            }
            if families.last().is_none_or(|last| last.name != name) {
                if families.iter().any(|family| family.name == name) {
                    return refuse("the lines of a family are apart");
                }
                families.push(Family { name: name.to_owned(), ..Family::default() });
            }
            let family = families.last_mut().ok_or("no family")?;
            if !family.samples.is_empty() {
                return refuse("a description after a sample");
            }
            let field = match word {
                "HELP" => &mut family.help,
                "TYPE" => &mut family.kind,
                "UNIT" if is_open_metrics && name.ends_with(&format!("_{value}")) => {
                    &mut family.unit
                }
                _ => return refuse("unknown word"),
            };
            if field.replace(value.to_owned()).is_some() {
                return refuse("described twice");
            }
            continue;
        }
        let sample = Sample::parse(line).ok_or(format!("no sample: `{line}`"))?;
        if !series.insert((sample.name.clone(), sample.labels.clone())) {
            return refuse("a series twice");
        }
        let family = families.last_mut().ok_or(format!("no family: `{line}`"))?;
        if !family.allows(&sample.name, is_open_metrics) {
            return refuse("a name that its family does not have");
        }
        family.samples.push(sample);
    }
    let mut kinds = BTreeMap::new();
    for family in families {
        family.check()?;
        kinds.insert(family.name, family.kind.unwrap_or_default());
    }
    Ok(kinds)
}

type Labels = Vec<(String, String)>;

#[derive(Default)]
struct Family {
    name: String,
    kind: Option<String>,
    help: Option<String>,
    unit: Option<String>,
    samples: Vec<Sample>,
}

struct Sample {
    name: String,
    labels: Labels,
    value: f64,
}

fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(is_allowed)
}

impl Sample {
    fn parse(line: &str) -> Option<Self> {
        let name_bytes = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(name_bytes);
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (Vec::new(), rest),
        };
        let value = value.strip_prefix(' ')?;
        let value = match value {
            "+Inf" => f64::INFINITY,
            // The number alone: neither a timestamp nor an exemplar is written here.
            value if value.chars().all(|c| c.is_ascii_digit() || "+-.e".contains(c)) => {
                value.parse().ok()?
            }
            "NaN" => f64::NAN,
            _ => return None,
        };
        is_name(name).then(|| Self { name: name.to_owned(), labels, value })
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| &**value)
    }
}

/// Reads labels up to their brace, sorted by name; returns what follows.
fn labels(mut rest: &str) -> Option<(Labels, &str)> {
    let mut labels = Vec::new();
    loop {
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at + 1,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    c @ ('\\' | '"') => value.push(c),
                    _ => return None,
                },
                (_, c) => value.push(c),
            }
        };
        if !is_name(name) || labels.iter().any(|(known, _)| known == name) {
            return None;
        }
        labels.push((name.to_owned(), value));
        rest = &after[end..];
        if let Some(after) = rest.strip_prefix('}') {
            labels.sort();
            return Some((labels, after));
        }
        rest = rest.strip_prefix(',')?;
    }
}

impl Family {
    fn allows(&self, sample: &str, is_open_metrics: bool) -> bool {
        let Some(suffix) = sample.strip_prefix(&self.name) else { return false };
        match (self.kind.as_deref(), is_open_metrics) {
            (Some("counter"), true) => suffix == "_total",
            (Some("info"), true) => suffix == "_info",
            (Some("histogram"), _) => ["_bucket", "_sum", "_count"].contains(&suffix),
            (Some("counter" | "gauge" | "untyped"), false) | (Some("gauge" | "unknown"), true) => {
                suffix.is_empty()
            }
            _ => false,
        }
    }

    fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if self.kind.is_none() || self.help.is_none() || self.samples.is_empty() {
            return Err(format!("{name} has no type, no help or no sample"));
        }
        if self.kind.as_deref() == Some("counter") {
            let bad =
                self.samples.iter().find(|sample| sample.value.is_nan() || sample.value < 0.0);
            return bad.map_or(Ok(()), |bad| Err(format!("{name} counts {}", bad.value)));
        }
        if self.kind.as_deref() != Some("histogram") {
            return Ok(());
        }
        let mut buckets: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
        for sample in self.samples.iter().filter(|sample| sample.name.ends_with("_bucket")) {
            let le = sample.label("le").ok_or(format!("{name}: a bucket without a bound"))?;
            let le = if le == "+Inf" { f64::INFINITY } else { le.parse().map_err(|_| le)? };
            let others = sample.labels.iter().filter(|(label, _)| label != "le").cloned();
            buckets.entry(others.collect()).or_default().push((le, sample.value));
        }
        for (labels, buckets) in buckets {
            let grows = buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
            let count = format!("{name}_count");
            let count = self.samples.iter().find(|it| it.name == count && it.labels == labels);
            let last = buckets.last().filter(|last| last.0 == f64::INFINITY);
            if !grows || last.map(|last| last.1) != count.map(|count| count.value) {
                return Err(format!("{name}{labels:?}: {buckets:?}"));
            }
        }
        Ok(())
    }
}
