//! Attributes of events, and members of maps.

use super::super::Name;
use super::super::batch::{Attribute, Batch, Run};
use super::super::value::{Key, Value};
use super::{KeyView, ValueView};

/// An attribute of an event, or several that it shares with other events.
#[derive(Clone, Copy, Debug)]
pub enum AttributeView<'a> {
    /// An attribute of this event only.
    One(Member<'a>),
    /// A run, never empty.
    Run(RunView<'a>),
}

/// A key and its value, looked up on access: copying them through memory is slower.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    batch: &'a Batch,
    key: Key,
    value: Value,
}

impl<'a> Member<'a> {
    /// The key.
    #[inline(always)]
    pub fn key(self) -> KeyView<'a> {
        self.batch.key(self.key)
    }

    /// The value.
    #[inline(always)]
    pub fn value(self) -> ValueView<'a> {
        self.batch.value(self.value)
    }
}

/// Attributes that several events of a batch share.
#[derive(Clone, Copy, Debug)]
pub struct RunView<'a> {
    batch: &'a Batch,
    index: u32,
    run: &'a Run,
}

impl<'a> RunView<'a> {
    /// The attributes.
    #[inline]
    pub fn members(self) -> Members<'a> {
        Members { batch: self.batch, members: &self.batch.members[self.run.members.range()] }
    }

    /// Its position among the runs of the batch.
    #[inline]
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Whether more than one event has it.
    #[inline]
    pub fn is_shared(self) -> bool {
        self.run.uses > 1
    }

    /// Their rendering by an encoder, once for all events. `None`: too few events share them to keep a rendering.
    #[inline]
    pub fn rendered(self, render: impl FnOnce(Members<'a>, &mut Vec<u8>)) -> Option<&'a [u8]> {
        let keep = || {
            let mut out = Vec::with_capacity(self.run.expanded);
            render(self.members(), &mut out);
            out.into_boxed_slice()
        };
        self.is_shared().then(|| &**self.run.rendered.get_or_init(keep))
    }
}

/// The attributes of an event.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    pub(super) batch: &'a Batch,
    pub(super) attributes: &'a [Attribute],
}

impl<'a> Attributes<'a> {
    /// Whether it has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.attributes.is_empty()
    }

    /// The same, one by one.
    #[inline]
    pub fn members(self) -> AttributeMembers<'a> {
        AttributeMembers { parts: self, run: Members { batch: self.batch, members: &[] } }
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = AttributeView<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let (first, rest) = self.attributes.split_first()?;
        self.attributes = rest;
        Some(match first {
            Attribute::One(key, value) => AttributeView::One(Member { batch: self.batch, key: *key, value: *value }),
            Attribute::Run(run) => {
                AttributeView::Run(RunView { batch: self.batch, index: *run, run: &self.batch.runs[*run as usize] })
            }
        })
    }
}

/// The attributes of an event, one by one.
#[derive(Clone, Copy, Debug)]
pub struct AttributeMembers<'a> {
    parts: Attributes<'a>,
    /// The members that are left of the present run.
    run: Members<'a>,
}

impl<'a> Iterator for AttributeMembers<'a> {
    type Item = Member<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(member) = self.run.next() {
                return Some(member);
            }
            match self.parts.next()? {
                AttributeView::One(member) => return Some(member),
                AttributeView::Run(run) => self.run = run.members(),
            }
        }
    }
}

/// Keys and values: members of a map, or of a run of attributes.
#[derive(Clone, Copy, Debug)]
pub struct Members<'a> {
    pub(super) batch: &'a Batch,
    pub(super) members: &'a [(Key, Value)],
}

impl<'a> Members<'a> {
    /// The text of the member with this name; `None`: there is none, or it is no text.
    pub fn text_of(self, name: Name) -> Option<&'a str> {
        text_in(self, name)
    }

    /// Whether it has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Their number.
    #[inline]
    pub fn len(&self) -> usize {
        self.members.len()
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let ((key, value), rest) = self.members.split_first()?;
        self.members = rest;
        Some(Member { batch: self.batch, key: *key, value: *value })
    }
}

/// The text of the member with this name; `None`: there is none, or it is no text.
#[inline]
pub(super) fn text_in<'a>(mut members: impl Iterator<Item = Member<'a>>, name: Name) -> Option<&'a str> {
    members.find_map(|member| if member.key().is(name) { member.value().as_text() } else { None })
}
