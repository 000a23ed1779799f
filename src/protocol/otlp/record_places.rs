//! Finds the records of a body that was checked, one by one: the request has messages of resources, these have messages of scopes,
//! and these have records, with the same numbers of fields for every signal.

use std::ops::Range;

use tributary_codec::protobuf::{ProtobufFields, ProtobufValue, Varints};

/// A message of the body.
pub(super) type MessagePlace = Range<usize>;

/// The resource or the scope of records; the outer messages of records.
const OUTER: u64 = 1;
const INNER: u64 = 2;

/// The next record, and what is new since the one before.
#[derive(Debug)]
pub(super) enum NextPlace {
    /// Records of this resource follow. An empty place: they have none.
    Resource(MessagePlace),
    /// Records of this scope follow.
    Scope(MessagePlace),
    Record(MessagePlace),
    End,
}

/// Where the next record is looked for.
#[derive(Debug)]
pub(super) struct RecordPlaces {
    /// The rest of the request, of the messages of a resource, and of those of a scope.
    request: MessagePlace,
    resource: MessagePlace,
    scope: MessagePlace,
}

impl RecordPlaces {
    /// The records of a body.
    pub(super) fn new(body: &[u8]) -> RecordPlaces {
        RecordPlaces { request: 0..body.len(), resource: 0..0, scope: 0..0 }
    }

    pub(super) fn next(&mut self, body: &[u8]) -> NextPlace {
        if let Some(record) = next_message(body, &mut self.scope, INNER) {
            return NextPlace::Record(record);
        }
        if let Some(scope) = next_message(body, &mut self.resource, INNER) {
            self.scope = scope.clone();
            return NextPlace::Scope(first_message(body, scope, OUTER));
        }
        if let Some(resource) = next_message(body, &mut self.request, OUTER) {
            self.resource = resource.clone();
            return NextPlace::Resource(first_message(body, resource, OUTER));
        }
        NextPlace::End
    }
}

/// The next message with this number in `rest`, which begins behind it then.
pub(super) fn next_message(body: &[u8], rest: &mut MessagePlace, number: u64) -> Option<MessagePlace> {
    let mut fields = ProtobufFields::of(&body[rest.clone()]);
    let end = rest.end;
    let found = fields.find_map(|field| match field.value {
        ProtobufValue::Bytes(message) if field.number == number => Some(message.len()),
        _ => None,
    });
    rest.start = end - fields.rest().len();
    found.map(|length| rest.start - length..rest.start)
}

/// The message with this number, which may stand behind others. Empty: there is none.
fn first_message(body: &[u8], within: MessagePlace, number: u64) -> MessagePlace {
    next_message(body, &mut within.clone(), number).unwrap_or(0..0)
}

/// The numbers of a repeated field of a message, packed or not, one by one.
#[derive(Debug)]
pub(super) struct NumberPlaces {
    /// The rest of the message, and of a packed list.
    message: MessagePlace,
    packed: MessagePlace,
    field: u64,
    is_fixed: bool,
}

impl NumberPlaces {
    /// Varints of the message at this place.
    pub(super) fn varints(message: MessagePlace, field: u64) -> NumberPlaces {
        NumberPlaces { message, packed: 0..0, field, is_fixed: false }
    }

    /// Numbers of 8 bytes.
    pub(super) fn fixed(message: MessagePlace, field: u64) -> NumberPlaces {
        NumberPlaces { message, packed: 0..0, field, is_fixed: true }
    }

    pub(super) fn next(&mut self, body: &[u8]) -> Option<u64> {
        loop {
            if let Some(number) = self.next_packed(body) {
                return Some(number);
            }
            let end = self.message.end;
            let mut fields = ProtobufFields::of(&body[self.message.clone()]);
            let found = fields.find(|field| field.number == self.field);
            self.message.start = end - fields.rest().len();
            match found?.value {
                ProtobufValue::Varint(number) => return Some(number),
                ProtobufValue::Bytes(list) | ProtobufValue::Fixed(list) => {
                    self.packed = self.message.start - list.len()..self.message.start;
                }
            }
        }
    }

    fn next_packed(&mut self, body: &[u8]) -> Option<u64> {
        let rest = &body[self.packed.clone()];
        let (number, len) = if self.is_fixed {
            (u64::from_le_bytes(*rest.first_chunk()?), 8)
        } else {
            let mut varints = Varints::of(rest);
            let number = varints.next()?;
            (number, rest.len() - varints.rest().len())
        };
        self.packed.start += len;
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_codec::protobuf::push_bytes_field;

    fn message(fields: &[(u8, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        fields.iter().for_each(|(number, bytes)| push_bytes_field(&mut out, *number, bytes));
        out
    }

    #[test]
    fn records_come_in_their_order_with_resources_and_scopes_that_stand_behind_them() {
        let scope = message(&[(2, b"r1"), (2, b"r2"), (1, b"scope")]);
        let first = message(&[(2, &scope), (1, b"resource"), (2, &message(&[(2, b"r3")]))]);
        let body = message(&[(7, b"unknown"), (1, &first), (1, b""), (1, &message(&[(1, b"last")]))]);
        let mut places = RecordPlaces::new(&body);
        let mut found = String::new();
        loop {
            let (name, place) = match places.next(&body) {
                NextPlace::Resource(place) => ("resource", place),
                NextPlace::Scope(place) => ("scope", place),
                NextPlace::Record(place) => ("record", place),
                NextPlace::End => break,
            };
            found += &format!("{name} {} ", str::from_utf8(&body[place]).unwrap());
        }
        assert_eq!(
            found,
            "resource resource scope scope record r1 record r2 scope  record r3 resource  resource last "
        );
    }

    #[test]
    fn numbers_come_in_their_order_packed_or_not() {
        let mut body = message(&[(4, &[1, 0x80, 1]), (7, b"other")]);
        body.extend_from_slice(&[4 << 3, 5]);
        body.extend(message(&[(4, &[]), (5, &[1, 0, 0, 0, 0, 0, 0, 0]), (4, &[9])]));
        body.extend_from_slice(&[5 << 3 | 1, 2, 0, 0, 0, 0, 0, 0, 0]);
        let all = |mut places: NumberPlaces| std::iter::from_fn(|| places.next(&body)).collect::<Vec<_>>();
        assert_eq!(all(NumberPlaces::varints(0..body.len(), 4)), [1, 128, 5, 9]);
        assert_eq!(all(NumberPlaces::fixed(0..body.len(), 5)), [1, 2]);
    }
}
