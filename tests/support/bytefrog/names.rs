//! The names of the ids of a recording, by all its mappings.

use std::collections::BTreeMap;

use super::recording::{Message, Recording};
use super::text::Text;

/// The mappings of a whole run.
pub struct Names {
    methods: BTreeMap<u64, Vec<Text>>,
    exceptions: BTreeMap<u64, Vec<Text>>,
    /// First and last line.
    locations: BTreeMap<u64, Vec<(i64, i64)>>,
    threads: BTreeMap<u64, Vec<ThreadName>>,
}

struct ThreadName {
    time: u64,
    name: Text,
    stream: usize,
    offset: u64,
}

/// The parts of a signature `pkg/Class.method;<flags>;<descriptor>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Method {
    pub function: String,
    pub access: i64,
    pub descriptor: String,
}

/// The mappings that are known when a name is looked up.
#[derive(Clone, Copy, PartialEq)]
pub enum Known {
    /// Every mapping of the run.
    All,
    /// At least the earlier ones on the same connection; any of those on other connections and of later ones.
    AsItCame,
}

impl Names {
    pub fn of(recording: &Recording) -> Names {
        let mut names = Names {
            methods: BTreeMap::new(),
            exceptions: BTreeMap::new(),
            locations: BTreeMap::new(),
            threads: BTreeMap::new(),
        };
        for (stream, message) in recording.messages() {
            let number = |key: &str| message.number(key).unwrap();
            match message.type_id() {
                Some(10) => {
                    let (time, name, offset) = (number("time"), message.text("text"), message.offset());
                    let name = ThreadName { time, name, stream, offset };
                    names.threads.entry(number("thread")).or_default().push(name);
                }
                Some(11) => names.methods.entry(number("method")).or_default().push(message.text("text")),
                Some(12) => names.exceptions.entry(number("exception")).or_default().push(message.text("text")),
                Some(13) => {
                    let lines = ["start_line", "end_line"].map(|key| message.field(key).as_i64().unwrap());
                    names.locations.entry(number("location")).or_default().push(lines.into());
                }
                _ => {}
            }
        }
        names
    }

    /// Every text of an id: one, unless the recording maps it again.
    pub fn methods(&self, id: u64) -> &[Text] {
        self.methods.get(&id).map_or(&[], Vec::as_slice)
    }

    pub fn exceptions(&self, id: u64) -> &[Text] {
        self.exceptions.get(&id).map_or(&[], Vec::as_slice)
    }

    pub fn locations(&self, id: u64) -> &[(i64, i64)] {
        self.locations.get(&id).map_or(&[], Vec::as_slice)
    }

    /// The names that the thread of an event may have by rule 21: the mapping with the greatest time up to that of the
    /// event, in any order of arrival; before all of them the earliest; at equal times either.
    ///
    /// A collector knows only what has arrived. With [`Known::AsItCame`] every answer is right that the rule gives for
    /// some set of mappings with those before the event on its own connection: the collector certainly reads those
    /// first, and an event may wait (for the name of its method) while others arrive.
    pub fn threads(&self, event: &Message, stream: usize, known: Known) -> Vec<&Text> {
        let (thread, time) = (event.number("thread").unwrap(), event.number("time").unwrap());
        let Some(mappings) = self.threads.get(&thread) else { return Vec::new() };
        let is_certain = |name: &&ThreadName| match known {
            Known::All => true,
            Known::AsItCame => name.stream == stream && name.offset < event.offset(),
        };
        let certain: Vec<&ThreadName> = mappings.iter().filter(is_certain).collect();
        let latest = certain.iter().map(|name| name.time).filter(|at| *at <= time).max();
        let earliest = certain.iter().map(|name| name.time).min();
        let is_possible = |name: &&ThreadName| match (latest, earliest) {
            (Some(latest), _) => latest <= name.time && name.time <= time,
            (None, Some(earliest)) => name.time <= earliest,
            (None, None) => true,
        };
        mappings.iter().filter(is_possible).map(|name| &name.name).collect()
    }
}

/// The function name of a signature.
pub fn function(signature: &str) -> String {
    method(signature).map_or_else(|| signature.to_owned(), |method| method.function)
}

/// The parts of a signature, if it has the form of one.
pub fn method(signature: &str) -> Option<Method> {
    let mut parts = signature.splitn(3, ';');
    let (name, access, descriptor) = (parts.next()?, parts.next()?, parts.next()?);
    let access = access.parse().ok()?;
    let is_form = name.contains('.') && descriptor.starts_with('(');
    is_form.then(|| Method { function: name.replace('/', "."), access, descriptor: descriptor.to_owned() })
}
