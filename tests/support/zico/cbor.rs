//! Bodies written by hand.

/// A head of this major type.
fn head(major: u8, number: u64) -> Vec<u8> {
    let major = major << 5;
    match number {
        0..24 => vec![major | number as u8],
        24..0x100 => vec![major | 24, number as u8],
        0x100..0x1_0000 => [&[major | 25][..], &(number as u16).to_be_bytes()].concat(),
        0x1_0000..0x1_0000_0000 => [&[major | 26][..], &(number as u32).to_be_bytes()].concat(),
        _ => [&[major | 27][..], &number.to_be_bytes()].concat(),
    }
}

pub fn int(number: i64) -> Vec<u8> {
    if number < 0 { head(1, !number as u64) } else { head(0, number as u64) }
}

pub fn text(text: &str) -> Vec<u8> {
    [head(3, text.len() as u64), text.as_bytes().to_vec()].concat()
}

pub fn bytes(bytes: &[u8]) -> Vec<u8> {
    [head(2, bytes.len() as u64), bytes.to_vec()].concat()
}

pub fn array(items: &[Vec<u8>]) -> Vec<u8> {
    [head(4, items.len() as u64), items.concat()].concat()
}

pub fn map(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let pairs_of = pairs.iter().map(|(key, value)| [key.as_slice(), value].concat()).collect::<Vec<_>>();
    [head(5, pairs.len() as u64), pairs_of.concat()].concat()
}

pub fn tag(tag: u64, inner: Vec<u8>) -> Vec<u8> {
    [head(6, tag), inner].concat()
}

pub fn null() -> Vec<u8> {
    vec![0xF6]
}

/// A string reference of doc and gen1.
pub fn reference(id: i64) -> Vec<u8> {
    tag(6, int(id))
}

/// Gen1, the streaming tracer's byte order.
pub mod gen1 {
    use super::{array, bytes, int, map, tag, text};

    pub fn string(id: i64, of: &str, kind: i64) -> Vec<u8> {
        tag(1, array(&[int(id), text(of), int(kind)]))
    }

    pub fn method(id: i64, parts: [i64; 3]) -> Vec<u8> {
        tag(2, array(&[int(id), int(parts[0]), int(parts[1]), int(parts[2])]))
    }

    fn word(low: u64, high: u64) -> Vec<u8> {
        bytes(&(high << 40 | low & 0xFF_FFFF_FFFF).to_le_bytes())
    }

    pub fn open(start: u64, method: u64) -> Vec<u8> {
        [vec![0xC8, 0x9F], tag(0x0B, word(start, method))].concat()
    }

    pub fn close(stop: u64, calls: u64) -> Vec<u8> {
        [tag(0x0D, word(stop, calls)), vec![0xFF]].concat()
    }

    pub fn begin(clock: i64, kind: i64) -> Vec<u8> {
        tag(0x21, array(&[int(clock), int(kind)]))
    }

    pub fn attributes(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        tag(9, map(pairs))
    }

    pub fn upward(kind: i64, pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        tag(0x26, array(&[int(kind), map(pairs)]))
    }
}

pub mod gen2 {
    use super::{array, int, tag, text};

    pub fn string(id: i64, of: &str) -> Vec<u8> {
        tag(1, array(&[int(id), text(of)]))
    }

    pub fn method(id: i64, parts: [i64; 3]) -> Vec<u8> {
        super::gen1::method(id, parts)
    }

    pub fn open(start: i64, method: i64) -> Vec<u8> {
        [vec![0xC3, 0x9F], int(start), int(method)].concat()
    }

    pub fn close(stop: i64, calls: i64, flags: Option<i64>) -> Vec<u8> {
        let items: Vec<_> = [Some(stop), Some(calls), flags].into_iter().flatten().map(int).collect();
        [tag(4, array(&items)), vec![0xFF]].concat()
    }

    pub fn begin(clock: i64, kind: i64, ids: &[i64]) -> Vec<u8> {
        let items: Vec<_> = [clock, kind].iter().chain(ids).map(|number| int(*number)).collect();
        tag(5, array(&items))
    }

    pub fn attribute(key: i64, value: Vec<u8>) -> Vec<u8> {
        tag(6, array(&[int(key), value]))
    }
}
