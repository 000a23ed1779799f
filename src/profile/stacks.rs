//! Sums samples and calls by stack, and the folded form that flame graph tools read.
//!
//! Every stack begins with two frames that are no calls: its process and its thread. [`Stacks::merged`] removes them.

use std::hash::{BuildHasher as _, Hash};
use std::io::{self, Write};

use foldhash::quality::RandomState;
use hashbrown::{HashMap, HashTable};

use super::tree::{ROOT, Tree};
use super::{Counted, ProfileFrame, ProfileSample, Site, words};

/// The maximum number of call paths; calls of further ones are added to their callers.
const MAX_NODES: usize = 1 << 23;
/// The maximum depth of a stack, process and thread included; deeper calls are added to their callers.
const MAX_DEPTH: u32 = 2048;

/// The text of a frame for which there was no memory.
pub const OTHERS: &str = "(other names)";
/// Memory of a name beside its text, which is there twice.
const NAME_BYTES: usize = 190;

/// What a frame of the tree is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Level {
    /// A process.
    Process,
    /// A thread.
    Thread,
    /// A call.
    Call,
}

/// A frame of the tree.
#[derive(Clone, Debug)]
pub struct TreeFrame {
    /// What it is.
    pub level: Level,
    /// Its text, e.g. `label (file:line)`, without `;`.
    pub text: Box<str>,
    /// The function, if it is known apart from its place.
    pub function: Option<Box<str>>,
    /// The file.
    pub file: Option<Box<str>>,
    /// The line.
    pub line: Option<u64>,
}

impl TreeFrame {
    /// The function, or its place if it has no name.
    pub fn name(&self) -> &str {
        self.function.as_deref().unwrap_or(&self.text)
    }
}

/// Sums by stack: two numbers for each stack, see [`Counted::column`].
#[derive(Clone, Debug)]
pub struct Stacks {
    frames: Vec<TreeFrame>,
    numbers: HashMap<(Level, Box<str>), u32, RandomState>,
    /// The hashes of known functions and places as they come, and their frames: the text of a frame is made once.
    known: HashTable<(u64, u32)>,
    hasher: RandomState,
    /// The thread that was asked for last: its process, its name and its node.
    last_thread: (Box<str>, Option<Box<str>>, u32),
    tree: Tree,
    /// The most memory of names, and what is used.
    max_name_bytes: usize,
    name_bytes: usize,
    totals: [u64; 2],
    cut: u64,
}

impl Default for Stacks {
    fn default() -> Self {
        Stacks::bounded(MAX_NODES, usize::MAX)
    }
}

impl Stacks {
    /// No stacks; at most `max_nodes` call paths, and names in about `name_bytes`. Further names are [`OTHERS`].
    pub fn bounded(max_nodes: usize, name_bytes: usize) -> Self {
        let tree = Tree::new(max_nodes, MAX_DEPTH, 2);
        Stacks {
            frames: Vec::new(),
            numbers: HashMap::default(),
            known: HashTable::new(),
            hasher: RandomState::default(),
            last_thread: Default::default(),
            tree,
            max_name_bytes: name_bytes,
            name_bytes: 0,
            totals: [0; 2],
            cut: 0,
        }
    }

    /// Adds a sample.
    pub fn add(&mut self, sample: &ProfileSample<'_>) {
        let node = self.node_of(sample);
        self.count(node, sample.counted.column(), sample.value);
    }

    /// The node of the stack of a sample. An allocation has two more frames than its stack: its site and the class of its
    /// objects; an object of a heap has them alone.
    pub fn node_of(&mut self, sample: &ProfileSample<'_>) -> u32 {
        let mut node = self.thread(&sample.agent, sample.thread.as_deref());
        for frame in sample.frames.iter().rev() {
            let number = self.frame(frame);
            node = self.callee(node, number);
        }
        if sample.counted.has_classes() {
            let site = self.frame(&ProfileFrame { function: None, site: sample.site.clone() });
            node = self.callee(node, site);
            let class = self.number(plain(Level::Call, words::folded(words::class(sample.class.as_deref()))));
            node = self.callee(node, class);
        } else if sample.frames.is_empty() {
            let none = self.number(plain(Level::Call, "(no frames)".to_owned()));
            node = self.callee(node, none);
        }
        node
    }

    /// The node of a thread of a process.
    pub fn thread(&mut self, process: &str, thread: Option<&str>) -> u32 {
        let (last_process, last_thread, node) = &self.last_thread;
        if *node != ROOT && **last_process == *process && last_thread.as_deref() == thread {
            return *node;
        }
        let of_process = self.number(plain(Level::Process, process_text(process)));
        let of_thread = self.number(plain(Level::Thread, words::folded(words::one_line(thread.unwrap_or("")))));
        let caller = self.callee(ROOT, of_process);
        let node = self.callee(caller, of_thread);
        self.last_thread = (process.into(), thread.map(Box::from), node);
        node
    }

    /// The number of a frame.
    pub fn frame(&mut self, frame: &ProfileFrame<'_>) -> u32 {
        let ProfileFrame { function, site } = frame;
        let (function, file, line) = (function.as_deref(), site.file.as_deref(), site.line.filter(|line| *line != 0));
        let is_it = |known: &TreeFrame| {
            known.level == Level::Call
                && (known.function.as_deref(), known.file.as_deref(), known.line) == (function, file, line)
        };
        self.known_frame((function, file, line), is_it, || named(frame))
    }

    /// The number of the frame of a function whose place is not known.
    pub fn function(&mut self, name: &str) -> u32 {
        self.frame(&ProfileFrame { function: Some(name.into()), site: Site::default() })
    }

    /// The name of a frame.
    pub(super) fn frame_text(&self, frame: u32) -> &str {
        self.frames.get(frame as usize).map_or(OTHERS, TreeFrame::name)
    }

    /// The number of the frame of a span: its name, and what it worked on.
    pub(super) fn span_frame(&mut self, name: &str, detail: Option<&str>) -> u32 {
        let Some(detail) = detail else { return self.function(name) };
        let is_it = |known: &TreeFrame| {
            let rest = known.function.as_deref().and_then(|function| function.strip_prefix(name));
            rest.and_then(|rest| rest.strip_prefix(' ')) == Some(detail) && known.file.is_none()
        };
        let function = || Some(format!("{name} {detail}").into());
        self.known_frame((name, detail), is_it, || named(&ProfileFrame { function: function(), site: Site::default() }))
    }

    /// The number of a frame that `is_it`, or of the one that is made, by the hash of what it is made of.
    fn known_frame(
        &mut self,
        of: impl Hash,
        is_it: impl Fn(&TreeFrame) -> bool,
        make: impl FnOnce() -> TreeFrame,
    ) -> u32 {
        let hash = self.hasher.hash_one(of);
        let is_known = |(known, number): &(u64, u32)| *known == hash && is_it(&self.frames[*number as usize]);
        if let Some((_, number)) = self.known.find(hash, is_known) {
            return *number;
        }
        let number = self.number(make());
        // A text that is changed for the output, or for which there is no memory, is not found by its hash.
        if is_it(&self.frames[number as usize]) {
            self.known.insert_unique(hash, (hash, number), |(hash, _)| *hash);
        }
        number
    }

    fn number(&mut self, frame: TreeFrame) -> u32 {
        let key = (frame.level, frame.text.clone());
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let text = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        let bytes = NAME_BYTES + 2 * frame.text.len() + text(&frame.function) + text(&frame.file);
        // The frame that stands for the others is there in any case, and for each level.
        let is_others = &*frame.text == OTHERS;
        if self.name_bytes.saturating_add(bytes) > self.max_name_bytes && !is_others {
            self.cut += 1;
            return self.number(plain(frame.level, OTHERS.to_owned()));
        }
        self.name_bytes += bytes;
        self.frames.push(frame);
        let number = self.frames.len() as u32 - 1;
        self.numbers.insert(key, number);
        number
    }

    /// The node of a call by `caller`.
    pub fn callee(&mut self, caller: u32, frame: u32) -> u32 {
        let node = self.tree.callee(caller, frame);
        // The tree is full or too deep.
        self.cut += u64::from(node == caller);
        node
    }

    /// The node under which a call in `thread` stands that `caller` has made: the same calls in this thread. Without a caller, the
    /// thread.
    pub fn caller_in(&mut self, thread: u32, caller: Option<u32>) -> u32 {
        match caller {
            None => thread,
            Some(caller) if self.tree.nodes()[caller as usize].base == thread => caller,
            Some(caller) => self.tree.moved(caller, thread),
        }
    }

    /// Adds to a sum of a node.
    pub fn count(&mut self, node: u32, column: usize, value: u64) {
        self.tree.add(node, column, value);
        self.totals[column] = self.totals[column].saturating_add(value);
    }

    /// Sets the most call paths, and the most memory of names. Those that are there stay.
    pub fn set_bounds(&mut self, max_nodes: usize, name_bytes: usize) {
        self.tree.set_max_nodes(max_nodes);
        self.max_name_bytes = name_bytes;
    }

    /// Takes the sums of all nodes that have some, in the order of the nodes, which stay.
    pub fn take_sums(&mut self) -> Vec<(u32, [u64; 2])> {
        self.totals = [0; 2];
        self.tree.take_sums()
    }

    /// Adds the stacks of another, without their process, and without their thread unless it is kept, with these sums of its nodes.
    pub fn absorb(&mut self, other: &Stacks, sums: &[[u64; 2]], keeps_thread: bool) {
        (0..2).for_each(|column| self.count(ROOT, column, sums[ROOT as usize][column]));
        let mut numbers: Vec<Option<u32>> = vec![None; other.frames.len()];
        let mut places: Vec<u32> = vec![ROOT];
        // Paths without a sum are not added.
        let mut is_used: Vec<bool> = sums.iter().map(|sums| *sums != [0; 2]).collect();
        for (at, node) in other.tree.nodes().iter().enumerate().skip(1).rev() {
            is_used[node.caller as usize] |= is_used[at];
        }
        for (at, node) in other.tree.nodes().iter().enumerate().skip(1) {
            let (caller, frame) = (places[node.caller as usize], &other.frames[node.frame as usize]);
            let is_kept = match frame.level {
                Level::Process => false,
                Level::Thread => keeps_thread,
                Level::Call => true,
            };
            let place = if is_kept && is_used[at] {
                let number = match numbers[node.frame as usize] {
                    Some(number) => number,
                    None => *numbers[node.frame as usize].insert(self.number(frame.clone())),
                };
                self.callee(caller, number)
            } else {
                caller
            };
            places.push(place);
            (0..2).for_each(|column| self.count(place, column, sums[at][column]));
        }
    }

    /// Bytes of memory, approximately.
    pub fn memory_bytes(&self) -> usize {
        self.tree.memory_bytes() + self.name_bytes + self.known.capacity() * 18
    }

    /// The sums of everything.
    pub fn totals(&self) -> [u64; 2] {
        self.totals
    }

    /// How many calls were added to their callers because the tree is full or too deep.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// The stacks of the processes for which `is_wanted`, without the frames of processes and threads that are not kept. The
    /// frame of a thread without a name is empty.
    pub fn merged(&self, is_wanted: impl Fn(&str) -> bool, keeps_process: bool, keeps_thread: bool) -> Stacks {
        let mut merged = self.without_sums();
        merged.cut = self.cut;
        let mut places: Vec<Option<u32>> = vec![Some(ROOT)];
        // It has sums where there was no space for a process.
        (0..2).for_each(|column| merged.count(ROOT, column, self.tree.nodes()[ROOT as usize].own[column]));
        for node in &self.tree.nodes()[1..] {
            let frame = &self.frames[node.frame as usize];
            let is_kept = match frame.level {
                Level::Process => keeps_process,
                Level::Thread => keeps_thread,
                Level::Call => true,
            };
            let caller = places[node.caller as usize];
            let place = match caller {
                Some(_) if frame.level == Level::Process && !is_wanted(&frame.text) => None,
                Some(caller) if is_kept => Some(merged.tree.callee(caller, node.frame)),
                caller => caller,
            };
            places.push(place);
            if let Some(place) = place {
                (0..2).for_each(|column| merged.count(place, column, node.own[column]));
            }
        }
        merged
    }

    /// No stacks, with the same frames.
    pub(super) fn without_sums(&self) -> Stacks {
        Stacks { frames: self.frames.clone(), numbers: self.numbers.clone(), ..Stacks::default() }
    }

    /// The frame of a node.
    pub fn named(&self, node: u32) -> &TreeFrame {
        &self.frames[self.tree.nodes()[node as usize].frame as usize]
    }

    /// The frames of the calls of a node, innermost first, without its process and thread.
    pub fn calls_of(&self, node: u32) -> impl Iterator<Item = u32> {
        self.tree.frames(node).take_while(|frame| self.frames[*frame as usize].level == Level::Call)
    }

    /// The frames, by number.
    pub fn all_frames(&self) -> &[TreeFrame] {
        &self.frames
    }

    /// The tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The sum of each node and of all calls below it.
    pub fn cumulated(&self, column: usize) -> Vec<u64> {
        let nodes = self.tree.nodes();
        let mut sums: Vec<u64> = nodes.iter().map(|node| node.own[column]).collect();
        for node in (1..sums.len()).rev() {
            let caller = nodes[node].caller as usize;
            sums[caller] = sums[caller].saturating_add(sums[node]);
        }
        sums
    }

    /// Writes one line for each stack, `root;…;innermost value`: callers before callees, siblings in the order of their texts.
    /// Values are divided by `divisor` and rounded. Calls with less than 1/`min_share` of the total are added to their callers.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write_folded(
        &self,
        column: usize,
        divisor: u64,
        min_share: Option<u64>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let (own, is_shown) = self.merge_small(column, min_share);
        let rounded = |value: u64| (value / divisor).saturating_add(u64::from(value % divisor >= divisor.div_ceil(2)));
        let rounded = |value: u64| if divisor == 1 { value } else { rounded(value) };
        let mut line = String::new();
        // The length of the line at each depth, so that a frame can be appended to its caller.
        let mut ends: Vec<usize> = Vec::new();
        for (node, depth) in self.order() {
            let at = node as usize;
            if !is_shown[at] {
                continue;
            }
            ends.truncate(depth);
            line.truncate(ends.last().copied().unwrap_or(0));
            if !line.is_empty() {
                line.push(';');
            }
            line.push_str(&self.named(node).text);
            ends.push(line.len());
            if rounded(own[at]) > 0 {
                writeln!(out, "{line} {}", rounded(own[at]))?;
            }
        }
        if rounded(own[0]) > 0 {
            writeln!(out, "(others) {}", rounded(own[0]))?;
        }
        Ok(())
    }

    /// Every call with its depth, from 0: callers before callees, siblings in the order of their texts.
    pub fn order(&self) -> Vec<(u32, usize)> {
        let nodes = self.tree.nodes();
        let text = |node: u32| &*self.named(node).text;
        let mut calls: Vec<u32> = (1..nodes.len() as u32).collect();
        // In descending order of the texts, because the last element is popped first.
        calls.sort_by(|a, b| {
            let callers = nodes[*a as usize].caller.cmp(&nodes[*b as usize].caller);
            callers.then_with(|| text(*b).cmp(text(*a)))
        });
        let callees = |caller: u32| {
            let start = calls.partition_point(|call| nodes[*call as usize].caller < caller);
            calls[start..].iter().take_while(move |call| nodes[**call as usize].caller == caller)
        };
        let mut order = Vec::with_capacity(calls.len());
        let mut waiting: Vec<(u32, usize)> = callees(ROOT).map(|call| (*call, 0)).collect();
        while let Some((node, depth)) = waiting.pop() {
            order.push((node, depth));
            waiting.extend(callees(node).map(|call| (*call, depth + 1)));
        }
        order
    }

    /// The own value of each call after the small ones have been added to their callers, and whether it is shown.
    fn merge_small(&self, column: usize, min_share: Option<u64>) -> (Vec<u64>, Vec<bool>) {
        let nodes = self.tree.nodes();
        let mut own: Vec<u64> = nodes.iter().map(|node| node.own[column]).collect();
        let mut is_shown = vec![true; own.len()];
        let Some(parts) = min_share else { return (own, is_shown) };
        let sums = self.cumulated(column);
        // Callees are after their callers.
        for node in (1..own.len()).rev() {
            is_shown[node] = u128::from(sums[node]) * u128::from(parts) >= u128::from(self.totals[column]);
            if !is_shown[node] {
                let caller = nodes[node].caller as usize;
                own[caller] = own[caller].saturating_add(own[node]);
            }
        }
        (own, is_shown)
    }
}

impl Counted {
    /// Which of the two sums of a stack it is.
    pub fn column(self) -> usize {
        usize::from(matches!(self, Counted::Calls | Counted::HeapObjects))
    }

    /// Whether its samples have a class and a site instead of, or beside, a stack.
    pub(super) fn has_classes(self) -> bool {
        matches!(self, Counted::Allocations | Counted::HeapBytes | Counted::HeapObjects)
    }
}

/// The name of a process as the text of its frame.
pub fn process_text(process: &str) -> String {
    words::folded(words::one_line(process))
}

fn plain(level: Level, text: String) -> TreeFrame {
    TreeFrame { level, text: text.into(), function: None, file: None, line: None }
}

fn named(frame: &ProfileFrame<'_>) -> TreeFrame {
    let ProfileFrame { function, site } = frame;
    let text = |text: Option<&str>| text.map(words::one_line).filter(|text| !text.is_empty()).map(Box::from);
    TreeFrame {
        level: Level::Call,
        text: words::frame(frame).into(),
        function: text(function.as_deref()),
        file: text(site.file.as_deref()),
        line: site.line.filter(|line| *line != 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(frames: &[&'static str], value: u64) -> ProfileSample<'static> {
        let frame = |name: &&'static str| ProfileFrame { function: Some((*name).into()), site: Site::default() };
        let frames = frames.iter().map(frame).collect();
        ProfileSample { value, frames, agent: "shop".into(), ..ProfileSample::default() }
    }

    fn folded(stacks: &Stacks, min_share: Option<u64>) -> String {
        let mut out = Vec::new();
        stacks.merged(|_| true, false, false).write_folded(0, 1, min_share, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn small_calls_are_added_to_their_callers_and_the_total_stays_the_same() {
        let mut stacks = Stacks::default();
        for (frames, value) in
            [(&["b", "a"][..], 89), (&["c", "a"], 4), (&["d", "c", "a"], 5), (&["e", "d", "c", "a"], 1), (&["f"], 1)]
        {
            stacks.add(&sample(frames, value));
        }
        assert_eq!(stacks.totals(), [100, 0]);
        assert_eq!(folded(&stacks, None), "a;b 89\na;c 4\na;c;d 5\na;c;d;e 1\nf 1\n");
        assert_eq!(folded(&stacks, Some(100)), folded(&stacks, None));
        assert_eq!(folded(&stacks, Some(20)), "a;b 89\na;c 4\na;c;d 6\n(others) 1\n");
        assert_eq!(folded(&stacks, Some(10)), "a;b 89\na;c 10\n(others) 1\n");
        assert_eq!(folded(&stacks, Some(1)), "(others) 100\n");
    }

    #[test]
    fn sums_saturate_and_recursive_calls_are_kept() {
        let mut stacks = Stacks::default();
        stacks.add(&sample(&["a", "a", "a"], u64::MAX));
        stacks.add(&sample(&["a", "a", "a"], 1));
        stacks.add(&sample(&["a"], 0));
        assert_eq!((stacks.totals(), stacks.cut()), ([u64::MAX, 0], 0));
        assert_eq!(folded(&stacks, None), format!("a;a;a {}\n", u64::MAX));
        assert_eq!(folded(&stacks, Some(10)), folded(&stacks, None));
    }

    #[test]
    fn stacks_deeper_than_the_limit_keep_their_total() {
        let mut stacks = Stacks::default();
        stacks.add(&sample(&["a"; 10_000], 3));
        assert_eq!((stacks.totals()[0], stacks.cut()), (3, 10_000 - u64::from(MAX_DEPTH) + 2));
        assert_eq!(folded(&stacks, None).matches('a').count(), MAX_DEPTH as usize - 2);
    }

    #[test]
    fn processes_and_threads_are_kept_or_merged() {
        let mut stacks = Stacks::default();
        let of = |agent, thread, value| ProfileSample { agent, thread, ..sample(&["a"], value) };
        stacks.add(&of("x".into(), Some("t".into()), 1));
        stacks.add(&of("x".into(), Some("u".into()), 2));
        stacks.add(&of("y".into(), None, 4));
        let folded = |process, thread| {
            let mut out = Vec::new();
            stacks.merged(|name| name != "z", process, thread).write_folded(0, 1, None, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(folded(false, false), "a 7\n");
        assert_eq!(folded(true, false), "x;a 3\ny;a 4\n");
        assert_eq!(folded(true, true), "x;t;a 1\nx;u;a 2\ny;;a 4\n");
        assert_eq!(stacks.merged(|name| name == "y", false, false).totals(), [4, 0]);
    }
}
