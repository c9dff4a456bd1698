//! Panics that end in errors.

use crate::Error;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`; returns [`Error::Panicked`] if it panics. `name` is its noun phrase, for example
/// `a group commit`.
///
/// The caller must not use what `work` may have left half done: it stops the store, or `work` owned
/// all that it changed.
pub fn caught<T>(name: &str, work: impl FnOnce() -> T) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let detail = text_of(&*panic);
        Error::Panicked(format!("{name} panicked: {detail}"))
    })
}

/// Returns the message of a panic.
pub fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_panic_names_the_work_the_message_and_the_remedy() {
        assert_eq!(caught("a sum", || 1 + 1).ok(), Some(2));
        let nth = 7;
        let texts = [
            caught("a write", || panic!("no room")).map(|()| 0),
            caught("a read", || panic!("block {nth}")).map(|()| 0),
            caught("a merge", || std::panic::panic_any(nth)).map(|()| 0),
        ]
        .map(|result| result.err().map(|error| error.to_string()).unwrap_or_default());
        for (text, start) in texts.iter().zip([
            "a write panicked: no room;",
            "a read panicked: block 7;",
            "a merge panicked: no message;",
        ]) {
            assert!(text.starts_with(start) && text.contains("open the store again"), "{text}");
        }
    }
}
