//! The files that the rules check: tracked ones, and new ones that git would track.

use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use proc_macro2::{Span, TokenStream};
use std::process::Command;
use syn::spanned::Spanned;
use syn::{Attribute, File, Item};

const TEXT_ENDINGS: [&str; 9] =
    [".rs", ".md", ".toml", ".sh", ".txt", ".yml", ".yaml", ".json", ".ci/run"];

/// One file, with its syntax if it is Rust.
pub(crate) struct Source {
    /// Path from the workspace's root, with `/`.
    pub path: String,
    pub text: String,
    pub syntax: Option<File>,
    /// Whether the file is compiled for tests only.
    pub is_test: bool,
}

impl Source {
    /// Parses Rust; keeps other text as it is.
    pub(crate) fn parse(path: &str, text: String) -> Result<Self> {
        let syntax = if path.ends_with(".rs") {
            Some(syn::parse_file(&text).with_context(|| format!("parsing {path}"))?)
        } else {
            None
        };
        let is_test = ["/tests/", "/benches/", "/examples/"].iter().any(|part| path.contains(part));
        Ok(Self { path: path.to_owned(), text, syntax, is_test })
    }

    /// Returns whether the file belongs to a product crate.
    pub(crate) fn is_product(&self) -> bool {
        self.path.starts_with("crates/")
    }

    /// Returns whether the file belongs to a product crate, or to one for their tests.
    pub(crate) fn is_product_or_testing(&self) -> bool {
        self.is_product() || self.path.starts_with("testing/")
    }

    /// Returns the lines (first and last, from 1) of items compiled for tests only.
    pub(crate) fn test_lines(&self) -> Vec<(usize, usize)> {
        let items = self.syntax.iter().flat_map(|file| &file.items);
        items.filter(|item| for_tests(attributes(item))).map(|item| lines_of(item.span())).collect()
    }

    pub(crate) fn tokens(&self) -> Option<TokenStream> {
        self.syntax.as_ref()?;
        self.text.parse().ok()
    }
}

pub(crate) fn lines_of(span: Span) -> (usize, usize) {
    (span.start().line, span.end().line)
}

/// Returns whether the attributes contain `#[cfg(test)]` or `#[cfg(all(test, ..))]`.
pub(crate) fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let inner = list.tokens.to_string().replace(' ', "");
        list.path.is_ident("cfg") && (inner == "test" || inner.starts_with("all(test,"))
    })
}

pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Separate workspaces inside this one: clients that pin other versions of crates that are used
/// here.
const OTHER_WORKSPACES: [&str; 2] =
    ["cluster-tests/tikv-rust/", "cluster-tests/redis-clients/rust/"];

/// Reads every text file of the workspace, in path order.
pub(crate) fn load(workspace: &Workspace) -> Result<Vec<Source>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(&workspace.root)
        .output()
        .context("running git ls-files")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).context("a path is not UTF-8")?;
    let mut paths: Vec<&str> = listed.lines().collect();
    paths.retain(|path| !OTHER_WORKSPACES.iter().any(|other| path.starts_with(other)));
    paths.sort_unstable();
    paths.dedup();
    let mut sources = Vec::new();
    for path in paths.into_iter().filter(|path| TEXT_ENDINGS.iter().any(|end| path.ends_with(end)))
    {
        let full = workspace.root.join(path);
        if full.is_file() {
            let text = std::fs::read_to_string(&full).with_context(|| path.to_owned())?;
            sources.push(Source::parse(path, text)?);
        }
    }
    Ok(sources)
}
