//! Measures of items: names of types that one crate has twice, and public items that nothing outside
//! their crate names.

use super::table::{Limit, Row};
use super::text::product;
use crate::tidy::source::{Source, attributes, for_tests, lines_of};
use proc_macro2::{Ident, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{ImplItem, Item, Visibility};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Named {
    pub package: String,
    pub name: String,
    pub place: String,
}

pub(super) fn rows(sources: &[Source]) -> Vec<Row> {
    vec![
        Row::of("visible type names twice in a crate", twins(sources).len(), Limit::AtMost(0)),
        Row::of(
            "public items that no other crate or test names",
            unused(sources).len(),
            Limit::None,
        ),
    ]
}

/// Returns the names of types that are visible outside their file and occur more than once in a crate, each
/// with its places.
pub(crate) fn twins(sources: &[Source]) -> BTreeMap<(String, String), Vec<String>> {
    let mut places: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for source in product(sources) {
        let mut items = Items::of(source);
        items.each(|found, item| {
            let (name, visibility) = match item {
                Item::Struct(it) => (&it.ident, &it.vis),
                Item::Enum(it) => (&it.ident, &it.vis),
                Item::Union(it) => (&it.ident, &it.vis),
                Item::Trait(it) => (&it.ident, &it.vis),
                Item::Type(it) => (&it.ident, &it.vis),
                _ => return,
            };
            if !matches!(visibility, Visibility::Inherited) {
                found.add(name);
            }
        });
        for item in items.found {
            places.entry((item.package, item.name)).or_default().push(item.place);
        }
    }
    places.retain(|_, places| places.len() > 1);
    places
}

/// Returns the `pub` items of libraries that no file outside their crate's sources names. The crate's own
/// tests in `tests/`, benches and examples are outside.
pub(super) fn unused(sources: &[Source]) -> Vec<Named> {
    let mut named: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        let mut names = Names(named.entry(home(&source.path)).or_default());
        source.syntax.iter().for_each(|file| names.visit_file(file));
    }
    let mut homes: BTreeMap<&str, usize> = BTreeMap::new();
    for names in named.values() {
        names.iter().for_each(|name| *homes.entry(name).or_default() += 1);
    }
    let is_used = |home: &str, name: &str| {
        let own = named.get(home).is_some_and(|names| names.contains(name));
        homes.get(name).copied().unwrap_or(0) > usize::from(own)
    };
    let mut found = Vec::new();
    for source in product(sources) {
        let items = public(source);
        found.extend(items.into_iter().filter(|it| !is_used(home(&source.path), &it.name)));
    }
    found.sort();
    found
}

/// Returns the part of the repository to which a file belongs: the sources of a crate, or a folder beside
/// them.
fn home(path: &str) -> &str {
    let end = path.find("/src/").or_else(|| path.rfind('/')).unwrap_or(0);
    &path[..end]
}

struct Names<'a>(&'a mut BTreeSet<String>);

impl Names<'_> {
    fn add_all(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => self.visit_ident(&ident),
                TokenTree::Group(group) => self.add_all(group.stream()),
                _ => {}
            }
        }
    }
}

impl Visit<'_> for Names<'_> {
    fn visit_ident(&mut self, ident: &Ident) {
        self.0.insert(ident.to_string());
    }

    fn visit_macro(&mut self, it: &syn::Macro) {
        self.add_all(it.tokens.clone());
        visit::visit_macro(self, it);
    }

    fn visit_meta_list(&mut self, it: &syn::MetaList) {
        self.add_all(it.tokens.clone());
        visit::visit_meta_list(self, it);
    }
}

/// Returns the items of a file that are marked `pub` alone, and such functions and constants of its types.
fn public(source: &Source) -> Vec<Named> {
    let mut items = Items::of(source);
    items.each(|found, item| {
        let (name, visibility) = match item {
            Item::Const(it) => (&it.ident, &it.vis),
            Item::Enum(it) => (&it.ident, &it.vis),
            Item::Fn(it) => (&it.sig.ident, &it.vis),
            Item::Static(it) => (&it.ident, &it.vis),
            Item::Struct(it) => (&it.ident, &it.vis),
            Item::Trait(it) => (&it.ident, &it.vis),
            Item::Type(it) => (&it.ident, &it.vis),
            Item::Union(it) => (&it.ident, &it.vis),
            Item::Impl(it) if it.trait_.is_none() => {
                for item in &it.items {
                    match item {
                        ImplItem::Const(it) => found.add_if_public(&it.ident, &it.vis),
                        ImplItem::Fn(it) => found.add_if_public(&it.sig.ident, &it.vis),
                        _ => {}
                    }
                }
                return;
            }
            _ => return,
        };
        found.add_if_public(name, visibility);
    });
    items.found
}

/// Walk over the items of a file that are not compiled for tests only.
struct Items<'a> {
    source: &'a Source,
    found: Vec<Named>,
}

impl<'a> Items<'a> {
    fn of(source: &'a Source) -> Self {
        Self { source, found: Vec::new() }
    }

    fn each(&mut self, mut visit: impl FnMut(&mut Self, &Item)) {
        let mut waiting: Vec<&Item> =
            self.source.syntax.iter().flat_map(|file| &file.items).collect();
        while let Some(item) = waiting.pop() {
            if for_tests(attributes(item)) {
                continue;
            }
            match item {
                Item::Mod(module) => {
                    waiting.extend(module.content.iter().flat_map(|(_, items)| items));
                }
                item => visit(self, item),
            }
        }
    }

    fn add(&mut self, name: &Ident) {
        let package = self.source.path.split('/').nth(1).unwrap_or_default().to_owned();
        let place = format!("{}:{}", self.source.path, lines_of(name.span()).0);
        self.found.push(Named { package, name: name.to_string(), place });
    }

    fn add_if_public(&mut self, name: &Ident, visibility: &Visibility) {
        if matches!(visibility, Visibility::Public(_)) {
            self.add(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sample;

    #[test]
    fn a_name_of_two_visible_types_in_one_crate_is_found() {
        let sources = [
            sample("crates/a/src/one.rs", "pub struct Mark; struct Own; pub(crate) enum Kind {}"),
            sample(
                "crates/a/src/two.rs",
                "\npub(super) type Kind = u8; struct Own; pub fn Mark() {}",
            ),
            sample("crates/a/src/three.rs", "#[cfg(test)] mod tests { pub struct Mark; }"),
            sample("crates/b/src/one.rs", "pub struct Mark;"),
        ];
        let found: Vec<_> = twins(&sources).into_iter().collect();
        let places = ["crates/a/src/one.rs:1", "crates/a/src/two.rs:2"].map(str::to_owned);
        assert_eq!(found, [(("a".to_owned(), "Kind".to_owned()), places.to_vec())]);
    }

    #[test]
    fn a_public_item_that_only_its_own_crate_names_is_found() {
        let own = "pub struct Used; pub struct Lonely; pub(crate) struct Inner;\n\
                   impl Used { pub fn tested(&self) {} pub fn alone(&self) {} fn private(&self) {} }\n\
                   fn f(it: Lonely) { it.alone(); }";
        let sources = [
            sample("crates/a/src/lib.rs", own),
            sample("crates/a/src/two.rs", "fn g(it: Lonely) {}"),
            sample("crates/a/tests/all.rs", "fn t(it: a::X) { check!(it.tested()); }"),
            sample("crates/b/src/lib.rs", "use a::Used;"),
        ];
        let names: Vec<String> = unused(&sources).into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["Lonely", "alone"]);
    }
}
