//! Rust code as a flat list of tokens with their places.

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::ops::Range;
use std::str::FromStr;

/// A token: a word, a literal, a delimiter, or one character of an operator; `=>` alone is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub text: String,
    pub range: Range<usize>,
}

/// Returns the tokens of `text`; comments are none.
pub(super) fn of(text: &str) -> Result<Vec<Token>> {
    let stream = TokenStream::from_str(text);
    let stream = stream.map_err(|error| anyhow::anyhow!("{error}")).context("not Rust code")?;
    let mut tokens = Vec::new();
    flatten(stream, &mut tokens);
    Ok(tokens)
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                let range = group.span_open().byte_range();
                tokens.push(Token { text: open.to_owned(), range });
                flatten(group.stream(), tokens);
                let range = group.span_close().byte_range();
                tokens.push(Token { text: close.to_owned(), range });
            }
            TokenTree::Punct(punct) => {
                let range = punct.span().byte_range();
                match tokens.last_mut().filter(|last| punct.as_char() == '>' && last.text == "=") {
                    Some(last) if last.range.end == range.start => {
                        last.text.push('>');
                        last.range.end = range.end;
                    }
                    _ => tokens.push(Token { text: punct.as_char().to_string(), range }),
                }
            }
            TokenTree::Ident(ident) => {
                let range = ident.span().byte_range();
                tokens.push(Token { text: ident.to_string(), range });
            }
            TokenTree::Literal(literal) => {
                let range = literal.span().byte_range();
                tokens.push(Token { text: literal.to_string(), range });
            }
        }
    }
}

/// Returns how many of `tokens` are `wanted`, if they begin with it. A comma in front of a closing delimiter makes no
/// difference.
pub(super) fn matched(wanted: &[Token], tokens: &[Token]) -> Option<usize> {
    let (mut at, mut of) = (0, 0);
    while let Some(token) = wanted.get(of) {
        let found = tokens.get(at)?;
        match found.text == token.text {
            true => (at, of) = (at + 1, of + 1),
            false if found.text == "," && closes(token) => at += 1,
            false if token.text == "," && closes(found) => of += 1,
            false => return None,
        }
    }
    Some(at)
}

/// Returns the place of the last token of the statement that `tokens` begin with. A `let` is none that could be left
/// out.
pub(super) fn statement(tokens: &[Token]) -> Option<usize> {
    let first = tokens.first().filter(|token| token.text != "let")?;
    let blocks = ["if", "match", "while", "for", "loop", "unsafe", "{"];
    let is_block = blocks.contains(&first.text.as_str());
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            ";" if depth == 0 => return Some(at),
            "(" | "[" | "{" => depth += 1,
            // The value of the block around it.
            _ if closes(token) && depth == 0 => return at.checked_sub(1),
            _ if closes(token) => {
                depth -= 1;
                let goes_on = |next: &Token| ["else", ".", "?"].contains(&next.text.as_str());
                let is_end = depth == 0 && is_block && token.text == "}";
                if is_end && !tokens.get(at + 1).is_some_and(goes_on) {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

fn closes(token: &Token) -> bool {
    matches!(token.text.as_str(), ")" | "]" | "}")
}
