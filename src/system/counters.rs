//! Counters that are written at any time, and their values at one moment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What has a value at every moment, while others change it.
pub trait Counted {
    /// The value.
    type Value;

    /// The value now.
    fn value(&self) -> Self::Value;
}

/// Defines counters, and the struct of their values at one moment:
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use tributary_system::counters::Counted as _;
///
/// tributary_system::counters! {
///     /// The counters of a queue.
///     #[derive(Default)]
///     struct QueueCounters();
///     /// Their values.
///     pub struct QueueTotals {
///         /// Items that were added.
///         added: AtomicU64,
///     }
/// }
/// let queue = QueueCounters::default();
/// queue.added.fetch_add(1, Relaxed);
/// assert_eq!(queue.value(), QueueTotals { added: 1 });
/// ```
///
/// The values are read in the order of the fields. What stands in the brackets does not change, and is an argument of `new`:
/// `struct QueueCounters(name: String);`.
#[macro_export]
macro_rules! counters {
    (
        $(#[$of_counters:meta])*
        $visibility:vis struct $counters:ident($($fixed:ident: $fixed_type:ty),*);
        $(#[$of_totals:meta])*
        pub struct $totals:ident {
            $($(#[$of_field:meta])* $field:ident: $kind:ty,)+
        }
    ) => {
        $(#[$of_counters])*
        #[derive(Debug)]
        $visibility struct $counters {
            $($fixed: $fixed_type,)*
            $($field: $kind,)+
        }

        $(#[$of_totals])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $totals {
            $(#[allow(missing_docs)] pub $fixed: $fixed_type,)*
            $($(#[$of_field])* pub $field: <$kind as $crate::counters::Counted>::Value,)+
        }

        impl $counters {
            // Where nothing is fixed, `Default` is used.
            #[allow(dead_code)]
            fn new($($fixed: $fixed_type),*) -> Self {
                $counters { $($fixed,)* $($field: Default::default(),)+ }
            }
        }

        impl $crate::counters::Counted for $counters {
            type Value = $totals;

            fn value(&self) -> $totals {
                $totals {
                    $($fixed: self.$fixed.clone(),)*
                    $($field: self.$field.value(),)+
                }
            }
        }
    };
}

impl Counted for AtomicU64 {
    type Value = u64;

    fn value(&self) -> u64 {
        self.load(Relaxed)
    }
}

impl Counted for AtomicBool {
    type Value = bool;

    fn value(&self) -> bool {
        self.load(Relaxed)
    }
}

impl<C: Counted, const N: usize> Counted for [C; N] {
    type Value = [C::Value; N];

    fn value(&self) -> Self::Value {
        self.each_ref().map(Counted::value)
    }
}

impl<C: Counted> Counted for Option<C> {
    type Value = Option<C::Value>;

    fn value(&self) -> Self::Value {
        self.as_ref().map(Counted::value)
    }
}

impl<T: Clone> Counted for Mutex<T> {
    type Value = T;

    fn value(&self) -> T {
        self.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<T: Clone + Default> Counted for OnceLock<T> {
    type Value = T;

    fn value(&self) -> T {
        self.get().cloned().unwrap_or_default()
    }
}
