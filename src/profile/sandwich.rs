//! One function between the calls that lead to it and those that it makes.
//!
//! A function that calls itself counts once: its total is that of its outermost calls, whose callers are shown; what its calls
//! made is added up below it, as if each had been the only one on its stack. So its own value and the callees add up to its
//! total.

use super::stacks::{Level, Stacks, TreeFrame};
use super::tree::ROOT;

/// A function with its callers and callees.
#[derive(Debug)]
pub struct Sandwich {
    /// Its name.
    pub name: String,
    /// The callers: a path leads from the function outwards. What ends at the root of a path is what nothing else called.
    pub callers: Stacks,
    /// The callees: a path leads inwards. The root has the own value of the function.
    pub callees: Stacks,
    /// How often it was called, where calls are counted.
    pub calls: u64,
}

/// No function has the name, or several have it.
#[derive(Debug, PartialEq, Eq)]
pub enum NameError {
    /// No function has this in its name.
    Unknown,
    /// Several functions have it.
    Ambiguous(Vec<String>),
}

/// The functions that are named in an error.
const MAX_NAMED: usize = 20;

impl Sandwich {
    /// Adds up the calls of the function with this name, or with this part of its name. Functions with the same name at several
    /// places count as one.
    ///
    /// # Errors
    /// No function, or more than one, has this part in its name.
    pub fn new(stacks: &Stacks, column: usize, name: &str) -> Result<Sandwich, NameError> {
        let frames = named(stacks, name)?;
        let nodes = stacks.tree().nodes();
        let sums = stacks.cumulated(column);
        let first = &stacks.all_frames()[frames[0] as usize];
        let name = if frames.len() == 1 { first.text.to_string() } else { first.name().to_owned() };
        let (callers, callees) = (stacks.without_sums(), stacks.without_sums());
        let mut sandwich = Sandwich { name, callers, callees, calls: 0 };
        let is_it = |frame: u32| frames.binary_search(&frame).is_ok();
        // The node among the callees of each node within the function.
        let mut within: Vec<Option<u32>> = vec![None; nodes.len()];
        for (at, node) in nodes.iter().enumerate().skip(1) {
            let around = within[node.caller as usize];
            if is_it(node.frame) {
                within[at] = Some(ROOT);
                sandwich.calls = sandwich.calls.saturating_add(node.own[1]);
                if around.is_none() {
                    let callers = stacks.calls_of(node.caller);
                    let caller = callers.fold(ROOT, |at, frame| sandwich.callers.callee(at, frame));
                    let mut sums_of = node.own;
                    sums_of[column] = sums[at];
                    (0..2).for_each(|column| sandwich.callers.count(caller, column, sums_of[column]));
                }
            } else if let Some(around) = around {
                within[at] = Some(sandwich.callees.callee(around, node.frame));
            }
            if let Some(place) = within[at] {
                (0..2).for_each(|column| sandwich.callees.count(place, column, node.own[column]));
            }
        }
        Ok(sandwich)
    }
}

/// The frames of the function, in order: those with this text, or this name, or the only one that has this part in its text.
fn named(stacks: &Stacks, name: &str) -> Result<Vec<u32>, NameError> {
    let mut is_called = vec![false; stacks.all_frames().len()];
    stacks.tree().nodes()[1..].iter().for_each(|node| is_called[node.frame as usize] = true);
    let those = |is_it: &dyn Fn(&TreeFrame) -> bool| -> Vec<u32> {
        let called = (0..).zip(stacks.all_frames()).filter(|(number, _)| is_called[*number as usize]);
        let found = called.filter(|(_, frame)| frame.level == Level::Call && is_it(frame));
        found.map(|(number, _)| number).collect()
    };
    for found in [those(&|frame| *frame.text == *name), those(&|frame| frame.name() == name)] {
        if !found.is_empty() {
            return Ok(found);
        }
    }
    let parts = those(&|frame| frame.text.contains(name));
    match parts.len() {
        0 => Err(NameError::Unknown),
        1 => Ok(parts),
        _ => {
            let mut texts: Vec<_> =
                parts.iter().map(|number| stacks.all_frames()[*number as usize].text.to_string()).collect();
            texts.sort();
            texts.truncate(MAX_NAMED);
            Err(NameError::Ambiguous(texts))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ProfileFrame, ProfileSample, Site, report};
    use super::*;
    use crate::Counted;

    fn stacks(of: &[(&str, u64)]) -> Stacks {
        let mut stacks = Stacks::default();
        for (folded, value) in of {
            let frame = |name: &str| ProfileFrame { function: Some(name.to_owned().into()), site: Site::default() };
            let frames = folded.split(';').rev().map(frame).collect();
            stacks.add(&ProfileSample { frames, value: *value, ..ProfileSample::default() });
        }
        stacks.merged(|_| true, false, false)
    }

    fn folded(stacks: &Stacks) -> String {
        let mut out = Vec::new();
        stacks.write_folded(0, 1, None, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_function_that_calls_itself_counts_once() {
        let stacks = stacks(&[("a;f", 1), ("a;f;b", 2), ("a;f;b;f", 4), ("a;f;b;f;c", 8), ("f;b", 16), ("a", 32)]);
        let sandwich = Sandwich::new(&stacks, 0, "f").unwrap();
        // `(others)` is what has no caller, and the function itself.
        assert_eq!(folded(&sandwich.callers), "a 15\n(others) 16\n");
        assert_eq!(folded(&sandwich.callees), "b 18\nc 8\n(others) 5\n");
        assert_eq!((sandwich.callers.totals()[0], sandwich.callees.totals()[0]), (31, 31));
    }

    #[test]
    fn callers_stand_above_the_function_and_callees_below() {
        let stacks = stacks(&[("main;run;work", 50), ("main;run;work;sqrt", 20), ("main;work", 20), ("idle", 10)]);
        let mut out = Vec::new();
        report::write_sandwich(&Sandwich::new(&stacks, 0, "wor").unwrap(), &stacks, Counted::Cpu, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<&str> = text.lines().map(|line| line.trim_end()).collect();
        assert_eq!(
            rows,
            [
                "       total   share          self  call",
                "          70   70.0%                    main",
                "          70   70.0%                  run",
                "          20   20.0%                  main",
                "          90   90.0%            70  work",
                "          20   20.0%            20    sqrt",
            ]
        );
    }

    #[test]
    fn a_part_of_a_name_must_be_that_of_one_function() {
        let stacks = stacks(&[("work;worker", 1)]);
        assert!(Sandwich::new(&stacks, 0, "work").is_ok(), "a whole name is not a part of others");
        let both = vec!["work".to_owned(), "worker".to_owned()];
        assert_eq!(Sandwich::new(&stacks, 0, "wor").unwrap_err(), NameError::Ambiguous(both));
        assert_eq!(Sandwich::new(&stacks, 0, "x").unwrap_err(), NameError::Unknown);
    }
}
