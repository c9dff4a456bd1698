//! Lengths of files and functions. The product part of a file excludes code that is compiled for
//! tests only.

use super::Finding;
use super::source::{Source, lines_of};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, Signature};

const FILES: &str = "file length";
const FUNCTIONS: &str = "function length";
/// Lines of the product part of a file, exclusive.
const FILE_LINES_LIMIT: usize = 800;
/// Median of the lines of all files, exclusive.
const FILE_LINES_MEDIAN_LIMIT: usize = 250;
/// Lines of a function, from `fn` to its closing brace, exclusive.
const FUNCTION_LINES_LIMIT: usize = 70;

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let Some(syntax) = &source.syntax else { return Vec::new() };
    let mut findings = Vec::new();
    let lines = product_lines(source);
    if lines >= FILE_LINES_LIMIT {
        let detail =
            format!("{lines} lines of product code; fewer than {FILE_LINES_LIMIT} are allowed");
        findings.push(Finding::new(FILES, &source.path, detail));
    }
    let mut functions = Functions { longest: Vec::new() };
    functions.visit_file(syntax);
    for (name, line, lines) in functions.longest {
        let detail =
            format!("`{name}` has {lines} lines; fewer than {FUNCTION_LINES_LIMIT} are allowed");
        findings.push(Finding::at(FUNCTIONS, &source.path, line, detail));
    }
    findings
}

/// Counts the lines outside items compiled for tests only; 0 in a file of tests.
fn product_lines(source: &Source) -> usize {
    if source.is_test {
        return 0;
    }
    let tests: usize = source.test_lines().iter().map(|(from, to)| to - from + 1).sum();
    source.text.lines().count() - tests
}

/// Functions over the limit: name, line and length.
struct Functions {
    longest: Vec<(String, usize, usize)>,
}

impl Functions {
    fn measure(&mut self, signature: &Signature, body: &Block) {
        let (from, to) = (lines_of(signature.span()).0, lines_of(body.span()).1);
        if to - from + 1 >= FUNCTION_LINES_LIMIT {
            self.longest.push((signature.ident.to_string(), from, to - from + 1));
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.measure(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// Returns the lines of the product part of each file of a product crate, the shortest first.
pub(crate) fn product_lengths(sources: &[Source]) -> Vec<(usize, &str)> {
    let product = sources.iter().filter(|source| source.syntax.is_some() && source.is_product());
    let mut lengths: Vec<(usize, &str)> = product
        .filter(|source| !source.is_test)
        .map(|source| (product_lines(source), source.path.as_str()))
        .collect();
    lengths.sort_unstable();
    lengths
}

/// Returns the median of sorted lengths.
pub(crate) fn median(lengths: &[(usize, &str)]) -> usize {
    lengths.get(lengths.len() / 2).map_or(0, |(lines, _)| *lines)
}

/// Returns count, median and longest product part, and a finding if the median is too high.
pub(crate) fn summary(sources: &[Source]) -> (String, Option<Finding>) {
    let lengths = product_lengths(sources);
    let total: usize = lengths.iter().map(|(lines, _)| lines).sum();
    let median = median(&lengths);
    let (longest, path) = lengths.last().copied().unwrap_or_default();
    let summary = format!(
        "product code: {total} lines in {} files, median {median}, longest {longest} ({path})",
        lengths.len()
    );
    let detail =
        format!("median of {median} lines; fewer than {FILE_LINES_MEDIAN_LIMIT} are allowed");
    let finding =
        (median >= FILE_LINES_MEDIAN_LIMIT).then(|| Finding::new(FILES, "crates", detail));
    (summary, finding)
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_of_seventy_lines_is_too_long() {
        let path = "crates/log/src/x.rs";
        assert_eq!(check(&sample(path, &function(69))), []);
        let found = check(&sample(path, &format!("\n{}", function(70))));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "crates/log/src/x.rs:2");
        assert_eq!(found[0].detail, "`long` has 70 lines; fewer than 70 are allowed");
        let method = format!("impl A {{\n{}}}", function(70));
        assert_eq!(check(&sample(path, &method)).len(), 1);
        let default = format!("trait A {{\n{}}}", function(70));
        assert_eq!(check(&sample(path, &default)).len(), 1);
    }

    #[test]
    fn tests_do_not_count_as_product_lines() {
        let product = "const A: u8 = 1;\n".repeat(799);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "const B: u8 = 1;\n".repeat(100));
        let path = "crates/log/src/x.rs";
        assert_eq!(check(&sample(path, &format!("{product}{tests}"))), []);
        let found = check(&sample(path, &format!("{product}const C: u8 = 1;\n{tests}")));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].rule, FILES);
    }

    #[test]
    fn the_median_is_reported_and_limited() {
        let of = |lines: usize| sample("crates/log/src/x.rs", &"\n".repeat(lines));
        let (summary, finding) = super::summary(&[of(10), of(249), of(700)]);
        assert!(summary.contains("959 lines in 3 files, median 249, longest 700"), "{summary}");
        assert_eq!(finding, None);
        assert!(super::summary(&[of(10), of(250), of(700)]).1.is_some());
    }
}
