//! The tables of `spec/README.md` that map actions to code: every action must be in a table, and
//! every file and function that a row names must exist.

use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::path::Path;

/// Modules, and actions that only compose other actions.
const MODULES: [&str; 3] = ["KvsRaft", "CommitReturn", "RelaxedRead"];

/// One row: an action and its code.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    line: usize,
    module: String,
    action: String,
    file: String,
    functions: Vec<String>,
}

/// Fails with a list of all errors in the tables.
pub(super) fn check(workspace: &Workspace) -> Result<()> {
    let root = &workspace.root;
    let text = std::fs::read_to_string(root.join("spec/README.md")).context("spec/README.md")?;
    let rows = rows(&text);
    let mut wrong: Vec<String> = rows.iter().filter_map(|row| missing_code(root, row)).collect();
    for module in MODULES {
        let path = root.join(format!("spec/{module}.tla"));
        let actions = actions(&std::fs::read_to_string(path).context(module)?);
        let listed = rows.iter().filter(|row| row.module == module).map(|row| row.action.clone());
        let listed: BTreeSet<String> = listed.collect();
        let lacks = actions.difference(&listed).map(|name| format!("no row for {module} {name}"));
        wrong.extend(lacks);
        let extra = listed.difference(&actions).map(|name| format!("{module} has no {name}"));
        wrong.extend(extra);
    }
    if !wrong.is_empty() {
        bail!("spec/README.md: {}", wrong.join("; "));
    }
    Ok(())
}

fn missing_code(root: &Path, row: &Row) -> Option<String> {
    let Ok(code) = std::fs::read_to_string(root.join(&row.file)) else {
        return Some(format!("line {}: there is no {}", row.line, row.file));
    };
    let is_there = |name: &String| {
        code.contains(&format!("fn {name}(")) || code.contains(&format!("fn {name}<"))
    };
    let missing: Vec<&String> = row.functions.iter().filter(|name| !is_there(name)).collect();
    if row.functions.is_empty() || !missing.is_empty() {
        return Some(format!("line {}: {} has no function {missing:?}", row.line, row.file));
    }
    None
}

/// Returns the rows of four cells below a heading "## Actions of MODULE": the action, its meaning,
/// the file and its functions. Names are between backticks.
fn rows(text: &str) -> Vec<Row> {
    let mut module = None;
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("## ") {
            module = line.strip_prefix("## Actions of ").map(str::to_owned);
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let (Some(module), [action, _, file, functions]) = (&module, cells.as_slice()) else {
            continue;
        };
        let (action, file) = (names(action).pop(), names(file).pop());
        let (Some(action), Some(file)) = (action, file) else { continue };
        let functions = names(functions);
        rows.push(Row { line: number + 1, module: module.clone(), action, file, functions });
    }
    rows
}

fn names(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the definitions of a module that set the next value of a variable.
fn actions(module: &str) -> BTreeSet<String> {
    let mut actions = BTreeSet::new();
    let mut name = String::new();
    for line in module.lines() {
        let is_definition = line.starts_with(|c: char| c.is_ascii_alphabetic());
        if let Some((head, _)) = line.split_once(" ==").filter(|_| is_definition) {
            name = head.split('(').next().unwrap_or_default().to_owned();
        }
        let code = line.split("\\*").next().unwrap_or_default();
        if !name.is_empty() && (code.contains("' = ") || code.contains("UNCHANGED")) {
            actions.insert(name.clone());
        }
    }
    actions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_every_action_and_only_code_that_exists() {
        check(&Workspace::load().unwrap()).unwrap();
    }

    #[test]
    fn rows_are_read_below_their_heading() {
        let text = "| `No` | none | `a.rs` | `f` |\n## Actions of KvsRaft\n\
                    | action | what | file | functions |\n| - | - | - | - |\n\
                    | `Sync` | writes | `a.rs` | `f`, `g` |\n";
        let rows = rows(text);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].module.as_str(), rows[0].action.as_str()), ("KvsRaft", "Sync"));
        assert_eq!(rows[0].functions, ["f", "g"]);
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let wrong = missing_code(root, &rows[0]).unwrap();
        assert!(wrong.contains("there is no a.rs"), "{wrong}");
    }

    #[test]
    fn a_function_that_is_gone_is_noticed() {
        let row = |function: &str| Row {
            line: 1,
            module: String::new(),
            action: String::new(),
            file: "src/spec/readme.rs".to_owned(),
            functions: vec![function.to_owned()],
        };
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(missing_code(root, &row("rows")), None);
        assert!(missing_code(root, &row(&["gone", "fn"].join("_"))).is_some());
    }

    #[test]
    fn what_sets_a_variable_is_an_action() {
        let module = "Max(a, b) == IF a > b THEN a ELSE b\nTick(s) ==\n    /\\ n' = n + 1\n\
                      Still ==\n    UNCHANGED n\nNext == Tick(1) \\/ Still\n";
        let expected: BTreeSet<String> = ["Still", "Tick"].map(str::to_owned).into();
        assert_eq!(actions(module), expected);
    }
}
