//! Rows printed as a table for people, or as JSON objects, one per line, for programs.

use crate::terminal::Output;
use serde_json::{Map, Value};
use stele_types::Result;

pub(crate) struct Cell {
    name: &'static str,
    text: String,
    value: Value,
    is_right: bool,
}

pub(crate) fn number(name: &'static str, number: u64) -> Cell {
    Cell { name, text: number.to_string(), value: number.into(), is_right: true }
}

pub(crate) fn formatted(name: &'static str, text: String, value: impl Into<Value>) -> Cell {
    Cell { name, text, value: value.into(), is_right: true }
}

/// Makes a right-aligned cell of a number that may be unknown.
pub(crate) fn maybe(name: &'static str, number: Option<u64>) -> Cell {
    let text = number.map_or("-".to_owned(), |number| number.to_string());
    Cell { name, text, value: number.into(), is_right: true }
}

pub(crate) fn words(name: &'static str, text: impl Into<String>) -> Cell {
    let text = text.into();
    Cell { name, value: text.clone().into(), text, is_right: false }
}

pub(crate) fn words_as(
    name: &'static str,
    text: impl Into<String>,
    value: impl Into<Value>,
) -> Cell {
    Cell { name, text: text.into(), value: value.into(), is_right: false }
}

/// Prints rows of the same columns. Without rows, the table is the text `none`.
pub(crate) fn print(rows: &[Vec<Cell>], json: bool, none: &str) -> Result<()> {
    let mut out = Output::new();
    if json {
        for row in rows {
            out.json(object(row))?;
        }
    } else {
        out.bytes(text(rows, none).as_bytes())?;
    }
    out.finish()
}

pub(crate) fn object(row: &[Cell]) -> Map<String, Value> {
    row.iter().map(|cell| (cell.name.to_owned(), cell.value.clone())).collect()
}

/// Formats the table: each column is as wide as its widest text, with two spaces between columns.
pub(crate) fn text(rows: &[Vec<Cell>], none: &str) -> String {
    let Some(first) = rows.first() else { return format!("{none}\n") };
    let width = |text: &str| text.chars().count();
    let mut widths: Vec<usize> = first.iter().map(|cell| width(cell.name)).collect();
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(width(&cell.text));
        }
    }
    let line = |cells: &mut dyn Iterator<Item = (&Cell, &str)>| {
        let mut line = String::new();
        for ((cell, text), widest) in cells.zip(&widths) {
            let pad = " ".repeat(widest - width(text));
            match cell.is_right {
                true => line.push_str(&format!("{pad}{text}  ")),
                false => line.push_str(&format!("{text}{pad}  ")),
            }
        }
        line.truncate(line.trim_end().len());
        line + "\n"
    };
    let head = line(&mut first.iter().map(|cell| (cell, cell.name)));
    let body = rows.iter().map(|row| line(&mut row.iter().map(|cell| (cell, cell.text.as_str()))));
    std::iter::once(head).chain(body).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_text() {
        let rows = [
            vec![number("store", 1), words("address", "a:1"), maybe("leader", None)],
            vec![number("store", 1000), words("address", "b:22"), maybe("leader", Some(7))],
        ];
        let expected = "\
store  address  leader
    1  a:1           -
 1000  b:22          7
";
        assert_eq!(text(&rows, "nothing"), expected);
        assert_eq!(text(&[], "nothing"), "nothing\n");
    }
}
