//! The paths of a put and of a get in `docs/paths.md`: each row names a function that exists, and that
//! calls what the row says. The files of a path are bounded.

use super::Finding;
use super::source::Source;
use std::collections::BTreeSet;
use syn::visit::{self, Visit};

const RULE: &str = "paths";
const PATHS: &str = "docs/paths.md";
/// Headings of the paths, and the largest numbers of rows and of files of each.
const MAX: [(&str, usize, usize); 2] = [("## Put", 20, 18), ("## Get", 43, 24)];

/// Row of a table: a function, and the functions that it calls on the path.
struct Row<'a> {
    line: usize,
    file: &'a str,
    function: &'a str,
    calls: Vec<&'a str>,
}

pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(page) = sources.iter().find(|source| source.path == PATHS) else {
        return vec![Finding::new(RULE, PATHS, "the file is missing")];
    };
    let mut findings = Vec::new();
    for (heading, rows_max, files_max) in MAX {
        let rows = rows_under(&page.text, heading);
        let files: BTreeSet<&str> = rows.iter().map(|row| row.file).collect();
        if rows.is_empty() || rows.len() > rows_max || files.len() > files_max {
            let (rows, files) = (rows.len(), files.len());
            let text = format!(
                "`{heading}` has {rows} rows in {files} files, at most {rows_max} in {files_max}"
            );
            findings.push(Finding::new(RULE, PATHS, text));
        }
        let functions: BTreeSet<&str> = rows.iter().map(|row| row.function).collect();
        for row in &rows {
            findings.extend(check_row(sources, &functions, row));
        }
    }
    findings
}

/// Returns the rows and the files of each path: its heading, the count of rows, the count of files.
pub(crate) fn hops(sources: &[Source]) -> Vec<(&'static str, usize, usize)> {
    let page = sources.iter().find(|source| source.path == PATHS);
    let text = page.map_or("", |page| &page.text);
    let count = |(heading, _, _)| {
        let rows = rows_under(text, heading);
        let files: BTreeSet<&str> = rows.iter().map(|row| row.file).collect();
        (heading, rows.len(), files.len())
    };
    MAX.map(count).to_vec()
}

fn check_row(sources: &[Source], functions: &BTreeSet<&str>, row: &Row<'_>) -> Option<Finding> {
    let found = |text: String| Some(Finding::at(RULE, PATHS, row.line, text));
    let path = format!("crates/{}", row.file);
    let syntax = sources.iter().find(|it| it.path == path).and_then(|it| it.syntax.as_ref());
    let Some(syntax) = syntax else { return found(format!("there is no file {path}")) };
    let mut bodies = Bodies { name: row.function, found: Vec::new() };
    bodies.visit_file(syntax);
    if bodies.found.is_empty() {
        return found(format!("{path} has no function `{}`", row.function));
    }
    let calls = |body: &BTreeSet<String>| row.calls.iter().all(|call| body.contains(*call));
    if !bodies.found.iter().any(calls) {
        return found(format!("`{}` in {path} does not call {:?}", row.function, row.calls));
    }
    let unknown = row.calls.iter().find(|call| !functions.contains(*call))?;
    found(format!("no row describes `{unknown}`"))
}

fn rows_under<'a>(text: &'a str, heading: &str) -> Vec<Row<'a>> {
    let mut lines = text.lines().enumerate().skip_while(|(_, line)| *line != heading).skip(1);
    let section = lines.by_ref().take_while(|(_, line)| !line.starts_with("## "));
    section.filter_map(|(number, line)| row(number + 1, line)).collect()
}

fn row(line: usize, text: &str) -> Option<Row<'_>> {
    let mut cells = text.strip_prefix('|')?.split('|').map(str::trim);
    let (file, function, calls) = (cells.next()?, cells.next()?, cells.next()?);
    let name = |cell| str::trim_matches(cell, '`');
    if !file.ends_with(".rs`") {
        return None;
    }
    let calls = calls.split(',').map(str::trim).filter(|call| !call.is_empty());
    Some(Row { line, file: name(file), function: name(function), calls: calls.map(name).collect() })
}

/// Names that the bodies of functions with one name use.
struct Bodies<'a> {
    name: &'a str,
    found: Vec<BTreeSet<String>>,
}

#[derive(Default)]
struct Names(BTreeSet<String>);

impl Visit<'_> for Names {
    fn visit_ident(&mut self, ident: &syn::Ident) {
        self.0.insert(ident.to_string());
    }

    fn visit_macro(&mut self, it: &syn::Macro) {
        let words = it.tokens.to_string();
        let words = words.split(|c: char| !c.is_alphanumeric() && c != '_');
        self.0.extend(words.map(str::to_owned));
        visit::visit_macro(self, it);
    }
}

impl Bodies<'_> {
    fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
        if signature.ident == self.name {
            let mut names = Names::default();
            names.visit_block(block);
            self.found.push(names.0);
        }
    }
}

impl Visit<'_> for Bodies<'_> {
    fn visit_item_fn(&mut self, it: &syn::ItemFn) {
        self.add(&it.sig, &it.block);
        visit::visit_item_fn(self, it);
    }

    fn visit_impl_item_fn(&mut self, it: &syn::ImplItemFn) {
        self.add(&it.sig, &it.block);
        visit::visit_impl_item_fn(self, it);
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn findings(page: &str) -> Vec<String> {
        let code = "fn put() { send(1); }\nstruct A;\nimpl A { fn send(&self) { self.write() } }";
        let sources = [sample("crates/a/src/a.rs", code), sample(PATHS, page)];
        check(&sources).into_iter().map(|finding| finding.detail).collect()
    }

    #[test]
    fn a_row_names_a_function_that_exists_and_that_calls_the_next_one() {
        let get = "\n## Get\n\n| `a/src/a.rs` | `send` | |\n";
        let page = |rows: &str| format!("## Put\n\n{rows}{get}");
        let whole = "| `a/src/a.rs` | `put` | `send` |\n| `a/src/a.rs` | `send` | |\n";
        assert!(findings(&page(whole)).is_empty());
        let wrong = [
            ("| `a/src/b.rs` | `put` | |\n", "there is no file"),
            ("| `a/src/a.rs` | `gone` | |\n", "has no function"),
            ("| `a/src/a.rs` | `put` | `write` |\n", "does not call"),
            ("| `a/src/a.rs` | `put` | `send` |\n", "no row describes"),
            ("", "has 0 rows in 0 files"),
        ];
        for (rows, text) in wrong {
            let found = findings(&page(rows));
            assert!(found.len() == 1 && found[0].contains(text), "{rows}: {found:?}");
        }
    }
}
