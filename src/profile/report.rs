//! Stacks as text: a table of functions, and a tree of calls.

use std::cmp::Reverse;
use std::io::{self, Write};

use super::Counted;
use super::sandwich::Sandwich;
use super::stacks::Stacks;

/// Calls with less than 1/200 of the total are left out of the tree.
const MIN_SHARE: u64 = 200;

/// The sums of a function: of itself, with everything that it called, and its calls.
#[derive(Clone, Copy, Debug, Default)]
struct FunctionSums {
    own: u64,
    total: u64,
    calls: u64,
}

/// Writes one row for each function, the one with the largest own value first. A recursive function counts once in `total`.
///
/// # Errors
/// Writing to `out` failed.
pub fn write_top(stacks: &Stacks, counted: Counted, out: &mut impl Write) -> io::Result<()> {
    let column = counted.column();
    let (nodes, sums) = (stacks.tree().nodes(), stacks.cumulated(column));
    let mut rows = vec![FunctionSums::default(); stacks.all_frames().len()];
    // How often each function is on the path of the current call.
    let mut on_path = vec![0u32; rows.len()];
    let mut path: Vec<u32> = Vec::new();
    for (node, depth) in stacks.order() {
        for left in path.drain(depth..) {
            on_path[left as usize] -= 1;
        }
        let (sum, node) = (sums[node as usize], nodes[node as usize]);
        let row = &mut rows[node.frame as usize];
        row.own = row.own.saturating_add(node.own[column]);
        row.calls = row.calls.saturating_add(node.own[1]);
        if on_path[node.frame as usize] == 0 {
            row.total = row.total.saturating_add(sum);
        }
        on_path[node.frame as usize] += 1;
        path.push(node.frame);
    }
    let mut order: Vec<usize> = (0..rows.len()).filter(|row| rows[*row].total > 0 || rows[*row].calls > 0).collect();
    order.sort_by_key(|row| (Reverse((rows[*row].own, rows[*row].total)), &*stacks.all_frames()[*row].text));
    let all = stacks.totals()[column];
    let has_calls = counted == Counted::Wall;
    let calls = if has_calls { format!("  {:>10}", "calls") } else { String::new() };
    writeln!(out, "{:>12}  {:>6}  {:>12}{calls}  function", "self", "share", "total")?;
    for row in order {
        let FunctionSums { own, total, calls } = rows[row];
        let calls = if has_calls { format!("  {calls:>10}") } else { String::new() };
        let (own_shown, total) = (value(counted, own), value(counted, total));
        let name = &stacks.all_frames()[row].text;
        writeln!(out, "{own_shown:>12}  {:>5.1}%  {total:>12}{calls}  {name}", share(own, all))?;
    }
    Ok(())
}

/// Writes the tree of calls, callers before callees, with the value of each together with its callees.
///
/// # Errors
/// Writing to `out` failed.
pub fn write_tree(stacks: &Stacks, counted: Counted, out: &mut impl Write) -> io::Result<()> {
    let tree = TreeRows { counted, all: stacks.totals()[counted.column()], depth: 0, are_callers: false };
    tree.head(out)?;
    let (rows, left_out) = tree.rows(stacks);
    rows.iter().try_for_each(|row| writeln!(out, "{row}"))?;
    tree.left_out(left_out, out)
}

/// Writes a function between its callers, outermost above, and the tree of its callees. Shares are those of `stacks`.
///
/// # Errors
/// Writing to `out` failed.
pub fn write_sandwich(sandwich: &Sandwich, stacks: &Stacks, counted: Counted, out: &mut impl Write) -> io::Result<()> {
    let column = counted.column();
    let callers = TreeRows { counted, all: stacks.totals()[column], depth: 1, are_callers: true };
    let callees = TreeRows { are_callers: false, ..callers };
    callees.head(out)?;
    let (rows, left_out) = callers.rows(&sandwich.callers);
    callers.left_out(left_out, out)?;
    rows.iter().rev().try_for_each(|row| writeln!(out, "{row}"))?;
    let own = sandwich.callees.tree().nodes()[0].own[column];
    let total = sandwich.callees.totals()[column];
    writeln!(out, "{}", callees.row(total, Some(own), sandwich.calls, 0, &sandwich.name))?;
    let (rows, left_out) = callees.rows(&sandwich.callees);
    rows.iter().try_for_each(|row| writeln!(out, "{row}"))?;
    callees.left_out(left_out, out)
}

/// How the rows of a tree are written.
#[derive(Clone, Copy, Debug)]
struct TreeRows {
    counted: Counted,
    /// The sum that the shares refer to.
    all: u64,
    /// The depth of the first rows.
    depth: usize,
    /// They have calls of the function, and nothing of their own.
    are_callers: bool,
}

impl TreeRows {
    fn head(&self, out: &mut impl Write) -> io::Result<()> {
        let calls = if self.counted == Counted::Wall { format!("  {:>10}", "calls") } else { String::new() };
        writeln!(out, "{:>12}  {:>6}  {:>12}{calls}  call", "total", "share", "self")
    }

    /// The rows of a tree; and the number of small calls that are left out, and their sum.
    fn rows(&self, stacks: &Stacks) -> (Vec<String>, (u64, u64)) {
        let column = self.counted.column();
        let (nodes, sums) = (stacks.tree().nodes(), stacks.cumulated(column));
        let calls = if self.are_callers { stacks.cumulated(1) } else { nodes.iter().map(|node| node.own[1]).collect() };
        let (mut rows, mut left_out) = (Vec::new(), (0, 0u64));
        // Below this depth calls are left out.
        let mut limit = usize::MAX;
        for (node, depth) in stacks.order() {
            if depth > limit {
                continue;
            }
            limit = usize::MAX;
            let (at, sum) = (node as usize, sums[node as usize]);
            if u128::from(sum) * u128::from(MIN_SHARE) < u128::from(self.all) {
                left_out = (left_out.0 + 1, left_out.1.saturating_add(sum));
                limit = depth;
                continue;
            }
            let own = (!self.are_callers).then_some(nodes[at].own[column]);
            rows.push(self.row(sum, own, calls[at], depth + self.depth, &stacks.named(node).text));
        }
        (rows, left_out)
    }

    fn row(&self, total: u64, own: Option<u64>, calls: u64, depth: usize, name: &str) -> String {
        let calls = if self.counted == Counted::Wall { format!("  {calls:>10}") } else { String::new() };
        let own = own.map_or_else(String::new, |own| value(self.counted, own));
        let (share, total, indent) = (share(total, self.all), value(self.counted, total), 2 * depth);
        format!("{total:>12}  {share:>5.1}%  {own:>12}{calls}  {:indent$}{name}", "")
    }

    fn left_out(&self, (count, sum): (u64, u64), out: &mut impl Write) -> io::Result<()> {
        if count == 0 {
            return Ok(());
        }
        let of = if self.are_callers { " of the callers" } else { "" };
        writeln!(out, "{:>12}  {:>5.1}%  in {count} smaller parts{of}", value(self.counted, sum), share(sum, self.all))
    }
}

fn share(part: u64, all: u64) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}

/// A value with its unit: times as milliseconds.
pub fn value(counted: Counted, value: u64) -> String {
    match counted.unit() {
        "nanoseconds" => format!("{}.{:03} ms", value / 1_000_000, value / 1000 % 1000),
        "bytes" => format!("{value} B"),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ProfileFrame, ProfileSample, Site};
    use super::*;

    fn stacks() -> Stacks {
        let mut stacks = Stacks::default();
        let frame = |name: &&'static str| ProfileFrame { function: Some((*name).into()), site: Site::default() };
        for (frames, value, calls) in [
            (&["a"][..], 2_000_000, 1),
            (&["b", "a"], 5_000_000, 3),
            (&["a", "b", "a"], 3_000_000, 3),
            (&["c"], 1000, 9),
        ] {
            for (counted, value) in [(Counted::Wall, value), (Counted::Calls, calls)] {
                let frames = frames.iter().map(frame).collect();
                stacks.add(&ProfileSample { counted, value, frames, ..ProfileSample::default() });
            }
        }
        stacks.merged(|_| true, false, false)
    }

    #[test]
    fn a_recursive_function_counts_once_in_its_total() {
        let mut out = Vec::new();
        write_top(&stacks(), Counted::Wall, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["5.000", "ms", "50.0%", "10.000", "ms", "4", "a"]);
        assert_eq!(rows[1], ["5.000", "ms", "50.0%", "8.000", "ms", "3", "b"]);
        assert_eq!(rows[2], ["0.001", "ms", "0.0%", "0.001", "ms", "9", "c"]);
    }

    #[test]
    fn a_tree_leaves_small_calls_out_and_says_so() {
        let mut out = Vec::new();
        write_tree(&stacks(), Counted::Wall, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.lines().nth(1).unwrap().ends_with("  a") && text.lines().nth(2).unwrap().ends_with("    b"),
            "{text}"
        );
        assert!(text.lines().nth(3).unwrap().ends_with("      a"), "{text}");
        let first: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(first, ["10.000", "ms", "100.0%", "2.000", "ms", "1", "a"]);
        assert!(text.ends_with("    0.001 ms    0.0%  in 1 smaller parts\n"), "{text}");
    }
}
