//! Stacks for speedscope: JSON as its schema describes it, <https://www.speedscope.app/file-format-schema.json>.
//!
//! Each process and thread is a profile of its own. Profiles are evented, which takes space in proportion to the calls and not
//! to the depth of the stacks: the events lay the calls out one after another, and their order in time means nothing.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::Counted;
use super::stacks::{Level, Stacks};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

/// Writes the stacks, whose processes and threads may be kept.
///
/// # Errors
/// Writing to `out` failed.
pub fn write(stacks: &Stacks, counted: Counted, title: &str, out: &mut impl Write) -> io::Result<()> {
    let frames: Vec<Value> = stacks.all_frames().iter().map(frame).collect();
    let document = json!({
        "$schema": SCHEMA,
        "exporter": concat!("tributary@", env!("CARGO_PKG_VERSION")),
        "name": title,
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": profiles(stacks, counted, title),
    });
    serde_json::to_writer(&mut *out, &document)?;
    writeln!(out)
}

fn frame(frame: &super::stacks::TreeFrame) -> Value {
    let mut shown = json!({"name": frame.name()});
    if let Some(file) = &frame.file {
        shown["file"] = json!(file);
    }
    if let Some(line) = frame.line {
        shown["line"] = json!(line);
    }
    shown
}

/// The open calls of the profile that is written.
struct CallLayout {
    open: Vec<(usize, u32, u64)>,
    events: Vec<Value>,
    at: u64,
}

fn profiles(stacks: &Stacks, counted: Counted, title: &str) -> Vec<Value> {
    let (nodes, totals) = (stacks.tree().nodes(), stacks.cumulated(counted.column()));
    let mut profiles = Vec::new();
    let mut layout = CallLayout { open: Vec::new(), events: Vec::new(), at: 0 };
    let (mut process, mut name) = (String::new(), title.to_owned());
    for (node, depth) in stacks.order() {
        let named = stacks.named(node);
        if named.level != Level::Call {
            layout.end(&name, counted, &mut profiles);
            if named.level == Level::Process {
                process = named.text.to_string();
                name.clone_from(&process);
            } else {
                let parts = [&*process, &*named.text];
                name = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
                if name.is_empty() {
                    name.push_str(title);
                }
            }
            continue;
        }
        layout.close(depth);
        if totals[node as usize] > 0 {
            let start = layout.at;
            layout.events.push(json!({"type": "O", "frame": nodes[node as usize].frame, "at": start}));
            let total = totals[node as usize];
            layout.open.push((depth, nodes[node as usize].frame, start.saturating_add(total)));
        }
    }
    layout.end(&name, counted, &mut profiles);
    profiles
}

impl CallLayout {
    /// Closes calls that are not callers of a call at this depth.
    fn close(&mut self, depth: usize) {
        while let Some((_, frame, end)) = self.open.pop_if(|(open, ..)| *open >= depth) {
            self.at = end;
            self.events.push(json!({"type": "C", "frame": frame, "at": end}));
        }
    }

    fn end(&mut self, name: &str, counted: Counted, profiles: &mut Vec<Value>) {
        self.close(0);
        let (events, end) = (std::mem::take(&mut self.events), std::mem::take(&mut self.at));
        if events.is_empty() {
            return;
        }
        let unit = if counted.unit() == "count" { "none" } else { counted.unit() };
        profiles.push(json!({
            "type": "evented", "name": name, "unit": unit, "startValue": 0, "endValue": end, "events": events,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ProfileFrame, ProfileSample, Site};
    use super::*;

    #[test]
    fn calls_are_laid_out_one_after_another_and_end_with_their_caller() {
        let mut stacks = Stacks::default();
        for (frames, thread, value) in [(&["b", "a"][..], "t", 3), (&["a"], "t", 1), (&["c"], "t", 2), (&["d"], "u", 5)]
        {
            let frame = |name: &&'static str| ProfileFrame { function: Some((*name).into()), site: Site::default() };
            let frames = frames.iter().map(frame).collect();
            stacks.add(&ProfileSample {
                frames,
                value,
                thread: Some(thread.into()),
                agent: "p".into(),
                ..ProfileSample::default()
            });
        }
        let mut out = Vec::new();
        write(&stacks.merged(|_| true, false, true), Counted::Cpu, "title", &mut out).unwrap();
        let document: Value = serde_json::from_slice(&out).unwrap();
        let names = |profile: &Value| -> Vec<String> {
            let event = |event: &Value| {
                let frame = event["frame"].as_u64().unwrap() as usize;
                let name = document["shared"]["frames"][frame]["name"].as_str().unwrap();
                format!("{}{name}{}", event["type"].as_str().unwrap(), event["at"])
            };
            profile["events"].as_array().unwrap().iter().map(event).collect()
        };
        let profiles = document["profiles"].as_array().unwrap();
        assert_eq!(profiles.len(), 2);
        assert_eq!((&profiles[0]["name"], &profiles[0]["endValue"]), (&json!("t"), &json!(6)));
        assert_eq!(names(&profiles[0]), ["Oa0", "Ob0", "Cb3", "Ca4", "Oc4", "Cc6"]);
        assert_eq!(names(&profiles[1]), ["Od0", "Cd5"]);
    }
}
