//! The tables that all threads of a profile share: texts, functions, frames and stacks.

use foldhash::quality::RandomState;
use hashbrown::HashMap;
use serde::{Serialize, Serializer, ser::SerializeMap};

use super::super::stacks::{Level, Stacks, TreeFrame};
use super::super::timeline::ShownTimeline;

/// A column of a table, whose values are made while it is written.
pub(super) struct Column<F>(pub(super) F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for Column<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// A table without rows.
struct EmptyTable(&'static [&'static str]);

impl Serialize for EmptyTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut table = serializer.serialize_map(None)?;
        for column in self.0 {
            table.serialize_entry(column, &[(); 0])?;
        }
        table.serialize_entry("length", &0)?;
        table.end()
    }
}

/// The tables of the items that are written.
pub(super) struct SharedTables<'a> {
    stacks: &'a Stacks,
    texts: Vec<&'a str>,
    numbers: HashMap<&'a str, u32, RandomState>,
    /// The frames: each has a function with the same number. And the number of each frame of the stacks.
    frames: Vec<&'a TreeFrame>,
    frame_numbers: HashMap<u32, u32, RandomState>,
    /// The nodes that are written, callers first, and the number of each node.
    nodes: Vec<u32>,
    node_numbers: Vec<u32>,
    /// The numbers of the files.
    files: Vec<&'a str>,
    file_numbers: HashMap<&'a str, u32, RandomState>,
}

/// The number of a node that is not written.
const NONE: u32 = u32::MAX;

impl<'a> SharedTables<'a> {
    pub(super) fn new(shown: &ShownTimeline<'a>) -> SharedTables<'a> {
        let stacks = shown.stacks();
        let nodes = stacks.tree().nodes();
        let mut is_used = vec![false; nodes.len()];
        let mut tables = SharedTables {
            stacks,
            texts: Vec::new(),
            numbers: HashMap::default(),
            frames: Vec::new(),
            frame_numbers: HashMap::default(),
            nodes: Vec::new(),
            node_numbers: vec![NONE; nodes.len()],
            files: Vec::new(),
            file_numbers: HashMap::default(),
        };
        for track in shown.processes.iter().flat_map(|process| &process.tracks) {
            shown.samples(track).for_each(|sample| is_used[sample.node as usize] = true);
            for call in track.calls {
                is_used[call.node as usize] = true;
                tables.add_text(shown.frame(call.frame).name());
            }
            track.spans.iter().for_each(|span| tables.add_text(shown.frame(span.name).name()));
        }
        for node in (1..nodes.len()).rev().filter(|node| stacks.named(*node as u32).level == Level::Call) {
            is_used[nodes[node].caller as usize] |= is_used[node];
        }
        for node in (1..nodes.len() as u32).filter(|node| is_used[*node as usize]) {
            if stacks.named(node).level == Level::Call {
                tables.node_numbers[node as usize] = tables.nodes.len() as u32;
                tables.nodes.push(node);
                tables.add_frame(nodes[node as usize].frame);
            }
        }
        tables
    }

    fn add_text(&mut self, text: &'a str) {
        if !self.numbers.contains_key(text) {
            self.numbers.insert(text, self.texts.len() as u32);
            self.texts.push(text);
        }
    }

    fn add_frame(&mut self, number: u32) {
        if self.frame_numbers.contains_key(&number) {
            return;
        }
        let stacks = self.stacks;
        let frame = &stacks.all_frames()[number as usize];
        self.frame_numbers.insert(number, self.frames.len() as u32);
        self.frames.push(frame);
        self.add_text(frame.name());
        if let Some(file) = frame.file.as_deref() {
            self.add_text(file);
            if !self.file_numbers.contains_key(file) {
                self.file_numbers.insert(file, self.files.len() as u32);
                self.files.push(file);
            }
        }
    }

    /// The number of a text.
    pub(super) fn text(&self, text: &str) -> u32 {
        self.numbers.get(text).copied().unwrap_or_default()
    }

    /// The number of a stack; `None`: it has no calls.
    pub(super) fn stack(&self, node: u32) -> Option<u32> {
        Some(self.node_numbers[node as usize]).filter(|number| *number != NONE)
    }

    /// The numbers from a stack back to that of its caller; 0: it has none.
    fn back_to_caller(&self, node: u32) -> u32 {
        let caller = self.stack(self.stacks.tree().nodes()[node as usize].caller);
        caller.map_or(0, |caller| self.node_numbers[node as usize] - caller)
    }
}

/// A column that has the same value in each row.
fn same<T: Serialize + Copy>(value: T, len: usize) -> impl Serialize {
    Column(move || std::iter::repeat_n(value, len))
}

/// The tables with rows, as they are written.
struct StackTable<'a>(&'a SharedTables<'a>);
struct FrameTable<'a>(&'a SharedTables<'a>);
struct FunctionTable<'a>(&'a SharedTables<'a>);
struct SourceTable<'a>(&'a SharedTables<'a>);

impl Serialize for StackTable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let StackTable(tables) = *self;
        let nodes = tables.stacks.tree().nodes();
        let frame = |node: &u32| tables.frame_numbers[&nodes[*node as usize].frame];
        let mut table = serializer.serialize_map(None)?;
        table.serialize_entry("frame", &Column(|| tables.nodes.iter().map(frame)))?;
        table.serialize_entry(
            "prefixOffset",
            &Column(|| tables.nodes.iter().map(|node| tables.back_to_caller(*node))),
        )?;
        table.serialize_entry("length", &tables.nodes.len())?;
        table.end()
    }
}

impl Serialize for FrameTable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let FrameTable(tables) = *self;
        let len = tables.frames.len();
        let mut table = serializer.serialize_map(None)?;
        table.serialize_entry("address", &same(-1, len))?;
        table.serialize_entry("lib", &same(-1, len))?;
        table.serialize_entry("inlineDepth", &same(0, len))?;
        table.serialize_entry("category", &same(0, len))?;
        table.serialize_entry("subcategory", &same(0, len))?;
        table.serialize_entry("func", &Column(|| 0..len))?;
        table.serialize_entry("nativeSymbol", &same((), len))?;
        table.serialize_entry("innerWindowID", &same((), len))?;
        table.serialize_entry("line", &Column(|| tables.frames.iter().map(|frame| frame.line)))?;
        table.serialize_entry("column", &same((), len))?;
        table.serialize_entry("originalLocation", &same((), len))?;
        table.serialize_entry("length", &len)?;
        table.end()
    }
}

impl Serialize for FunctionTable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let FunctionTable(tables) = *self;
        let len = tables.frames.len();
        let file = |frame: &&TreeFrame| frame.file.as_deref().and_then(|file| tables.file_numbers.get(file).copied());
        let mut table = serializer.serialize_map(None)?;
        table.serialize_entry("name", &Column(|| tables.frames.iter().map(|frame| tables.text(frame.name()))))?;
        table.serialize_entry("isJS", &same(false, len))?;
        table.serialize_entry("relevantForJS", &same(false, len))?;
        table.serialize_entry("resource", &same(-1, len))?;
        table.serialize_entry("source", &Column(|| tables.frames.iter().map(file)))?;
        table.serialize_entry("lineNumber", &Column(|| tables.frames.iter().map(|frame| frame.line)))?;
        table.serialize_entry("columnNumber", &same((), len))?;
        table.serialize_entry("originalLocation", &same((), len))?;
        table.serialize_entry("length", &len)?;
        table.end()
    }
}

impl Serialize for SourceTable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let SourceTable(tables) = *self;
        let len = tables.files.len();
        let mut table = serializer.serialize_map(None)?;
        table.serialize_entry("id", &same((), len))?;
        table.serialize_entry("filename", &Column(|| tables.files.iter().map(|file| tables.text(file))))?;
        table.serialize_entry("startLine", &same(1, len))?;
        table.serialize_entry("startColumn", &same(1, len))?;
        table.serialize_entry("sourceMapURL", &same((), len))?;
        table.serialize_entry("content", &same((), len))?;
        table.serialize_entry("length", &len)?;
        table.end()
    }
}

impl Serialize for SharedTables<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tables = serializer.serialize_map(None)?;
        tables.serialize_entry("stackTable", &StackTable(self))?;
        tables.serialize_entry("frameTable", &FrameTable(self))?;
        tables.serialize_entry("funcTable", &FunctionTable(self))?;
        tables.serialize_entry("resourceTable", &EmptyTable(&["name", "host", "type"]))?;
        tables.serialize_entry("nativeSymbols", &EmptyTable(&["libIndex", "address", "name", "functionSize"]))?;
        tables.serialize_entry("sources", &SourceTable(self))?;
        tables.serialize_entry("sourceLocationTable", &EmptyTable(&["source", "line", "column"]))?;
        tables.serialize_entry("stringArray", &self.texts)?;
        tables.end()
    }
}
