//! Panics of the parquet crate as errors.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

static HOOK: Once = Once::new();

thread_local! {
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `run`. Its panic is an error with the panic's message, and nothing is printed.
pub(super) fn contained<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    HOOK.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_CONTAINED.get() {
                others(panic);
            }
        }));
    });
    let was_contained = IS_CONTAINED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    IS_CONTAINED.set(was_contained);
    result.map_err(|panic| message(&*panic).to_owned())
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("the reader gave up")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        assert_eq!(contained(|| 7), Ok(7));
        assert_eq!(contained(|| -> u8 { panic!("page {}", 3) }), Err("page 3".to_owned()));
        assert_eq!(contained(|| -> u8 { panic!("page") }), Err("page".to_owned()));
    }
}
