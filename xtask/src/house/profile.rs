//! What one operation enters: functions that people wrote, their files, locks and allocations.

use super::table::{Limit, Row};
use super::text::product;
use super::trace::{Each, Symbol};
use crate::tidy::source::{Source, lines_of};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, Signature};

/// Entries of a function in one operation, from which it counts as a part of it.
const ENTRIES_MIN: f64 = 0.8;

/// Entries from which the functions of a lock are listed.
const LISTED_MIN: f64 = 0.05;

/// Functions of the global allocator that return memory.
const ALLOCATIONS: [&str; 3] = ["__rust_alloc", "__rust_alloc_zeroed", "__rust_realloc"];
/// Types of locks, and their functions that acquire one. They are generic or small, so the compiler puts a
/// copy into each crate that calls them.
const LOCKS: [(&str, &[&str]); 4] = [
    ("lock_api::mutex::Mutex<", &["lock", "try_lock", "try_lock_for", "try_lock_until"]),
    ("lock_api::rwlock::RwLock<", &["read", "write", "try_read", "try_write", "upgradable_read"]),
    ("std::sync::poison::mutex::Mutex<", &["lock", "try_lock"]),
    ("std::sync::poison::rwlock::RwLock<", &["read", "write", "try_read", "try_write"]),
];

/// A function that people wrote: its name and lines.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    name: String,
    from: usize,
    to: usize,
}

/// The functions of product files, by path. Closures and bodies of async functions belong to the function
/// around them. Derived code lies in none.
#[derive(Debug, Default)]
pub(super) struct Functions(BTreeMap<String, Vec<Function>>);

impl Functions {
    pub(super) fn of(sources: &[Source]) -> Self {
        let mut all = BTreeMap::new();
        for source in product(sources) {
            let mut found = Found(Vec::new());
            source.syntax.iter().for_each(|file| found.visit_file(file));
            all.insert(source.path.clone(), found.0);
        }
        Self(all)
    }

    /// Returns the innermost function around a line.
    fn at(&self, path: &str, line: usize) -> Option<&Function> {
        let around = self.0.get(path)?.iter().filter(|it| (it.from..=it.to).contains(&line));
        around.max_by_key(|it| it.from)
    }
}

struct Found(Vec<Function>);

impl Found {
    fn add(&mut self, signature: &Signature, body: &Block) {
        let (from, to) = (lines_of(signature.span()).0, lines_of(body.span()).1);
        self.0.push(Function { name: signature.ident.to_string(), from, to });
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.add(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// Means of one operation on one node.
#[derive(Debug, Default)]
pub(super) struct Profile {
    /// Entries of each function, by path, first line and name.
    functions: BTreeMap<(String, usize, String), f64>,
    threads: BTreeMap<String, f64>,
    locks: BTreeMap<String, f64>,
    allocations: f64,
}

impl Profile {
    /// Sums up counted entries. `root` is the folder of the workspace.
    pub(super) fn of(
        each: &Each,
        symbols: &BTreeMap<u64, Symbol>,
        functions: &Functions,
        root: &Path,
    ) -> Self {
        let root = format!("{}/", root.display());
        let mut profile = Self::default();
        for ((thread, address), entries) in each {
            let Some(symbol) = symbols.get(address) else { continue };
            if is_allocation(&symbol.name) {
                profile.allocations += entries;
            }
            if is_lock(&symbol.name) {
                *profile.locks.entry(symbol.name.clone()).or_default() += entries;
            }
            let path = symbol.file.strip_prefix(&root).unwrap_or(&symbol.file);
            if let Some(function) = functions.at(path, symbol.line) {
                let key = (path.to_owned(), function.from, function.name.clone());
                *profile.functions.entry(key).or_default() += entries;
                *profile.threads.entry(thread.clone()).or_default() += entries;
            }
        }
        profile
    }

    fn entered(&self) -> impl Iterator<Item = (&(String, usize, String), f64)> {
        let all = self.functions.iter().map(|(key, entries)| (key, *entries));
        all.filter(|(_, entries)| *entries >= ENTRIES_MIN)
    }

    pub(super) fn rows(&self, operation: &str) -> Vec<Row> {
        let files: BTreeSet<&str> = self.entered().map(|((path, ..), _)| path.as_str()).collect();
        let at_most = match operation {
            "put" => [520, 100, 3000, 50, 60].map(Limit::AtMost),
            _ => [Limit::AtMost(150), Limit::AtMost(40), Limit::None, Limit::None, Limit::None],
        };
        let [functions_max, files_max, entries_max, locks_max, allocations_max] = at_most;
        let of = |what: &str| format!("{what} a {operation}, measured on its leader");
        vec![
            Row::of(of("functions"), self.entered().count(), functions_max),
            Row::of(of("files"), files.len(), files_max),
            Row::mean(of("entries of functions"), self.threads.values().sum(), entries_max),
            Row::mean(of("locks"), self.locks.values().sum(), locks_max),
            Row::mean(of("allocations"), self.allocations, allocations_max),
        ]
    }

    pub(super) fn list(&self, operation: &str) -> String {
        let mut text = format!("## {operation}\n");
        for (thread, entries) in &self.threads {
            let _ = writeln!(text, "thread {thread}: {entries:.1} entries");
        }
        for (name, entries) in self.locks.iter().filter(|(_, entries)| **entries >= LISTED_MIN) {
            let _ = writeln!(text, "lock {entries:.1} {name}");
        }
        let mut last = "";
        for ((path, line, name), entries) in self.entered() {
            if path != last {
                let _ = writeln!(text, "{path}");
                last = path;
            }
            let _ = writeln!(text, "  {line}: {name} {entries:.1}");
        }
        text
    }
}

fn is_allocation(name: &str) -> bool {
    ALLOCATIONS.contains(&name.rsplit("::").next().unwrap_or(name))
}

fn is_lock(name: &str) -> bool {
    LOCKS.iter().any(|(of, functions)| {
        let ends = |function: &&&str| name.ends_with(&format!(">::{function}"));
        name.trim_start_matches('<').starts_with(of) && functions.iter().any(|it| ends(&it))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sample;

    const CODE: &str = "#[derive(Clone)]\nstruct A;\nfn outer() {\n    fn inner() {\n    }\n    \
                        let f = || 1;\n}\nimpl A {\n    pub fn method(&self) {}\n}\n\
                        #[cfg(test)]\nmod tests;\n";

    fn symbol(name: &str, file: &str, line: usize) -> Symbol {
        Symbol { name: name.to_owned(), file: file.to_owned(), line }
    }

    fn profile(symbols: &[(f64, Symbol)]) -> Profile {
        let sources = [sample("crates/a/src/a.rs", CODE), sample("sim/src/b.rs", CODE)];
        let at = |address: usize| ("net".to_owned(), address as u64);
        let each = symbols.iter().enumerate().map(|(address, (count, _))| (at(address), *count));
        let symbols = symbols.iter().enumerate().map(|(at, (_, it))| (at as u64, it.clone()));
        let (each, symbols) = (each.collect(), symbols.collect());
        Profile::of(&each, &symbols, &Functions::of(&sources), Path::new("/r"))
    }

    #[test]
    fn closures_belong_to_their_function_and_derived_code_to_none() {
        let path = "/r/crates/a/src/a.rs";
        let found = profile(&[
            (0.5, symbol("a::outer", path, 3)),
            (0.5, symbol("a::outer::{closure#0}", path, 6)),
            (2.0, symbol("a::outer::inner", "crates/a/src/a.rs", 4)),
            (0.7, symbol("a::A::method", path, 9)),
            (9.0, symbol("<a::A as Clone>::clone", path, 1)),
            (9.0, symbol("b::outer", "/r/sim/src/b.rs", 3)),
        ]);
        let list = found.list("put");
        let expected = "## put\nthread net: 3.7 entries\ncrates/a/src/a.rs\n  3: outer 1.0\n  \
                        4: inner 2.0\n";
        assert_eq!(list, expected);
        let values: Vec<String> =
            found.rows("put").iter().map(|row| row.value.to_string()).collect();
        assert_eq!(values, ["2", "1", "3.7", "0", "0"]);
    }

    #[test]
    fn locks_and_allocations_are_known_by_their_names() {
        let library = |name| symbol(name, "/rustc/x.rs", 1);
        let found = profile(&[
            (1.0, library("__rustc::__rust_alloc")),
            (2.0, library("__rustc::__rust_realloc")),
            (4.0, library("__rustc::__rust_dealloc")),
            (1.0, library("<lock_api::mutex::Mutex<parking_lot::RawMutex, u8>>::lock")),
            (2.0, library("<lock_api::rwlock::RwLock<R, T>>::read")),
            (4.0, library("<lock_api::mutex::Mutex<R, T>>::lock::{closure#0}")),
            (8.0, library("<lock_api::mutex::MutexGuard<R, T> as Deref>::deref")),
        ]);
        let names: Vec<&String> = found.locks.keys().collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert_eq!((found.locks.values().sum::<f64>(), found.allocations), (3.0, 3.0));
    }
}
