//! The open calls of one thread, in which the innermost call of a method is found also on a deep stack.

use std::ops::Deref;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// Up to this depth the innermost call of a method is found by a plain search.
const SHALLOW: usize = 64;
/// A stack keeps this capacity, in calls, when its calls end.
const RETAINED: usize = 16;

/// A call that a stack can find by its method.
pub trait MethodCall {
    /// The number of its method.
    fn method(&self) -> u32;
}

/// The open calls of a thread, outermost first.
#[derive(Clone, Debug)]
pub struct CallStack<T> {
    calls: Vec<T>,
    /// The number of calls of each method on a deep stack. Built when a call is first searched below [`SHALLOW`].
    deep: Option<HashMap<u32, u32, RandomState>>,
}

impl<T> Default for CallStack<T> {
    fn default() -> Self {
        CallStack { calls: Vec::new(), deep: None }
    }
}

impl<T> Deref for CallStack<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.calls
    }
}

impl<T: MethodCall> CallStack<T> {
    /// The calls that it has memory for.
    pub fn capacity(&self) -> usize {
        self.calls.capacity()
    }

    /// The innermost call.
    pub fn last_mut(&mut self) -> Option<&mut T> {
        self.calls.last_mut()
    }

    /// Every call. Their methods stay as they are.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.calls.iter_mut()
    }

    /// Every call, outermost first.
    pub fn into_calls(self) -> Vec<T> {
        self.calls
    }

    /// Opens a call.
    #[inline]
    pub fn push(&mut self, call: T) {
        if let Some(deep) = &mut self.deep {
            *deep.entry(call.method()).or_default() += 1;
        }
        self.calls.push(call);
    }

    /// Ends the innermost call.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let call = self.calls.pop()?;
        if let Some(deep) = &mut self.deep
            && let Some(count) = deep.get_mut(&call.method())
        {
            *count -= 1;
            if *count == 0 {
                deep.remove(&call.method());
            }
        }
        let (len, capacity) = (self.calls.len(), self.calls.capacity());
        if len <= SHALLOW {
            self.deep = None;
        }
        if capacity > RETAINED && len <= capacity / 4 {
            self.calls.shrink_to(capacity / 2);
        }
        Some(call)
    }

    /// The index of the innermost call of a method. A deep stack is searched only if the method is on it.
    #[inline]
    pub fn innermost(&mut self, method: u32) -> Option<usize> {
        let shallow = self.calls.len().saturating_sub(SHALLOW);
        let search = |calls: &[T]| calls.iter().rposition(|call| call.method() == method);
        if let Some(index) = search(&self.calls[shallow..]) {
            return Some(shallow + index);
        }
        if shallow == 0 {
            return None;
        }
        let deep = self.deep.get_or_insert_with(|| {
            let mut deep = HashMap::default();
            self.calls.iter().for_each(|call| *deep.entry(call.method()).or_default() += 1);
            deep
        });
        if deep.contains_key(&method) { search(&self.calls) } else { None }
    }
}
