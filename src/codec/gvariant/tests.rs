use super::*;

/// The calls of a visitor, as JSON-like text.
#[derive(Default)]
struct Recorder(String);

impl Recorder {
    fn say(&mut self, what: impl std::fmt::Display) {
        if !self.0.is_empty() && !self.0.ends_with(['[', '(', '{', '<']) {
            self.0.push(' ');
        }
        self.0.push_str(&what.to_string());
    }
}

impl<'a> Visitor<'a> for Recorder {
    fn bool(&mut self, value: bool) {
        self.say(value);
    }
    fn unsigned(&mut self, value: u64) {
        self.say(value);
    }
    fn signed(&mut self, value: i64) {
        self.say(format!("{value:+}"));
    }
    fn double(&mut self, value: f64) {
        self.say(format!("{value:?}"));
    }
    fn text(&mut self, value: &'a str) {
        self.say(format!("'{value}'"));
    }
    fn bytes(&mut self, value: &'a [u8]) {
        self.say(format!("{value:?}"));
    }
    fn nothing(&mut self) {
        self.say("nothing");
    }
    fn open(&mut self, container: Container) {
        self.say(match container {
            Container::Array => "[",
            Container::Dict { .. } => "<",
            Container::Tuple => "(",
            Container::Entry => "{",
        });
    }
    fn close(&mut self, container: Container) {
        self.0.push(match container {
            Container::Array => ']',
            Container::Dict { .. } => '>',
            Container::Tuple => ')',
            Container::Entry => '}',
        });
    }
}

fn read(kind: &str, bytes: &[u8]) -> Result<String, String> {
    let mut recorded = Recorder::default();
    visit_type(kind, Slice::new(bytes), 0, &mut Scratch::default(), &mut recorded)
        .map_err(|error| error.to_string())?;
    Ok(recorded.0)
}

fn is_normal(kind: &str, bytes: &[u8]) -> bool {
    read(kind, bytes).is_ok()
}

#[test]
fn basic_values_are_read_and_their_size_is_exact() {
    for (kind, bytes, recorded) in [
        ("y", &[255][..], "255"),
        ("b", &[1], "true"),
        ("n", &[0xFE, 0xFF], "-2"),
        ("q", &[0xFE, 0xFF], "65534"),
        ("i", &[0xFE, 0xFF, 0xFF, 0xFF], "-2"),
        ("h", &[1, 0, 0, 0], "+1"),
        ("u", &[0xFE, 0xFF, 0xFF, 0xFF], "4294967294"),
        ("x", &[0xFF; 8], "-1"),
        ("t", &[0xFF; 8], "18446744073709551615"),
        ("d", &[0, 0, 0, 0, 0, 0, 0xF8, 0x7F], "NaN"),
        ("s", b"q\0", "'q'"),
        ("o", b"/a/b_1\0", "'/a/b_1'"),
        ("g", b"a{sv}ii\0", "'a{sv}ii'"),
        ("()", &[0], "()"),
    ] {
        assert_eq!(read(kind, bytes).as_deref(), Ok(recorded));
        assert!(!is_normal(kind, &bytes[1..]) || "sog".contains(kind), "{kind}");
        assert!(!is_normal(kind, &[bytes, &[7]].concat()), "{kind}");
    }
}

#[test]
fn values_outside_of_normal_form_are_faults() {
    for (kind, bytes) in [
        ("b", &[2][..]),
        ("()", &[1]),
        ("s", b""),
        ("s", b"q"),
        ("s", b"q\0q\0"),
        ("s", b"\xC0\x80\0"),
        ("s", b"\xED\xA0\x80\0"),
        ("s", b"\xF4\x90\x80\x80\0"),
        ("o", b"a\0"),
        ("o", b"/a/\0"),
        ("o", b"//\0"),
        ("g", b"a\0"),
        ("g", b"{vs}\0"),
        ("v", b""),
        ("v", b"\x01b"),
        ("v", b"\x01\0"),
        ("v", b"\x01\0bb"),
        ("v", b"\x01\0r"),
        ("ms", b"q\0"),
        ("mi", &[1, 0, 0, 0, 0]),
        ("ai", &[0; 6]),
        ("(yi)", &[1, 1, 0, 0, 2, 0, 0, 0]),
        ("(iy)", &[1, 0, 0, 0, 2, 0, 0, 9]),
    ] {
        assert!(!is_normal(kind, bytes), "{kind} {bytes:?}");
    }
}

#[test]
fn maybes_of_maybes_keep_their_levels() {
    assert_eq!(read("mms", b"").as_deref(), Ok("nothing"));
    assert_eq!(read("mms", b"\0").as_deref(), Ok("nothing"));
    assert_eq!(read("mms", b"q\0\0\0").as_deref(), Ok("'q'"));
    assert!(!is_normal("mms", b"q\0\0"));
}

#[test]
fn containers_follow_their_offsets() {
    assert_eq!(read("as", b"a\0bc\0\x02\x05").as_deref(), Ok("['a' 'bc']"));
    assert_eq!(read("(sas)", b"x\0a\0\x02\x02").as_deref(), Ok("('x' ['a'])"));
    assert_eq!(read("a{sy}", b"k\0\x05\x02\x04").as_deref(), Ok("<{'k' 5}>"));
    assert_eq!(read("{sx}", b"k\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x02").as_deref(), Ok("{'k' +7}"));
    assert_eq!(read("a()", &[0, 0]).as_deref(), Ok("[() ()]"));
    assert_eq!(read("a(yx)", &[]).as_deref(), Ok("[]"));
    assert_eq!(read("av", b"").as_deref(), Ok("[]"));
    assert_eq!(read("v", b"\x07\0y").as_deref(), Ok("7"));
    // Ends that decrease, ends inside the table, or a missing table.
    assert!(!is_normal("as", b"a\0bc\0\x05\x02"));
    assert!(!is_normal("as", b"a\0bc\0\x02\x06"));
    assert!(!is_normal("as", b"a\0bc\0\x02\x07"));
    assert!(!is_normal("(sas)", b"x\0a\0\x02\x05"));
    assert!(!is_normal("(sy)", b"x\0\x07\x07\x02"));
}

#[test]
fn offsets_are_of_the_narrowest_width_that_works() {
    let text = |len: usize| [&vec![b'a'; len][..], &[0]].concat();
    // 254 bytes and one offset of one byte are 255; one byte more needs offsets of two.
    assert!(is_normal("as", &[text(253), vec![254]].concat()));
    assert!(is_normal("as", &[text(254), vec![255, 0]].concat()));
    assert!(!is_normal("as", &[text(253), vec![254, 0]].concat()));
    let long = text(65_532);
    assert!(is_normal("as", &[long.clone(), 65_533u16.to_le_bytes().to_vec()].concat()));
    assert!(!is_normal("as", &[long, 65_533u32.to_le_bytes().to_vec()].concat()));
    let long = text(65_533);
    assert!(is_normal("as", &[long, 65_534u32.to_le_bytes().to_vec()].concat()));
}

#[test]
fn values_and_types_nest_to_their_limits_and_no_further() {
    let nested = |levels: usize| (0..levels).fold(vec![1, 0, b'y'], |inner, _| [inner, vec![0, b'v']].concat());
    assert!(is_normal("v", &nested(126)));
    assert!(!is_normal("v", &nested(127)));
    let tuples = |levels: usize| format!("{}y{}", "(".repeat(levels), ")".repeat(levels));
    assert!(is_normal(&tuples(127), &[1]));
    assert!(!is_normal(&tuples(128), &[1]));
    assert!(is_normal("g", format!("{}\0", tuples(128)).as_bytes()));
    assert!(!is_normal("g", format!("{}\0", tuples(129)).as_bytes()));
    assert!(is_normal(&format!("({})", "y".repeat(4_000)), &[9; 4_000]));
}

#[test]
fn a_type_is_one_complete_type() {
    for bad in
        ["", "yy", "a", "m", "(", "(y", "y)", "{y}", "{yyy}", "{vy}", "{ay}", "{", "r", "*", "?", "a{}", "{(y)y}"]
    {
        assert!(!is_normal(bad, &[0]), "{bad}");
    }
    assert!(is_normal("{yy}", &[0, 0]));
    assert!(is_normal("{y(sas)}", b"\x01x\0a\0\x02\x02"));
}

#[test]
fn faults_name_their_offset_in_the_whole() {
    assert_eq!(read("(yas)", b"\x01a\0b\xFF\0\x02\x05").unwrap_err(), "gvariant.string: found 0xff, expected UTF-8");
    let error =
        visit_type("(yas)", Slice::new(b"\x01a\0b\xFF\0\x02\x05"), 0, &mut Scratch::default(), &mut Skip).unwrap_err();
    assert_eq!(error.offset, 4);
}

#[test]
fn a_cached_type_is_walked_like_a_parsed_one() {
    let mut scratch = Scratch::default();
    let mut again = |kind: &str, bytes: &[u8]| {
        let mut recorded = Recorder::default();
        visit_type(kind, Slice::new(bytes), 0, &mut scratch, &mut recorded).map_err(|error| error.to_string())?;
        Ok::<_, String>(recorded.0)
    };
    // Too long to be cached, around a variant of a cached type; the member after the variant needs the outer type again.
    let long = format!("({}vy)", "y".repeat(70));
    let value = [&[1; 70][..], &[0, 0], b"x\0\0s", &[7, 76]].concat();
    let expected = format!("({} 'x' 7)", ["1"; 70].join(" "));
    for _ in 0..2 {
        assert_eq!(again("s", b"x\0"), Ok("'x'".to_owned()));
        assert_eq!(again(&long, &value), Ok(expected.clone()));
        // An error inside leaves no state that the next visit would use.
        assert!(again(&long, &value[..77]).is_err() && again("(yq", &[]).is_err());
        // More types than the cache holds.
        for length in 1..50 {
            let recorded = format!("({})", vec!["5"; length].join(" "));
            assert_eq!(again(&format!("({})", "y".repeat(length)), &vec![5; length]), Ok(recorded));
        }
    }
}

#[test]
fn zero_bytes_are_found_at_every_offset() {
    for length in 0..40 {
        let text = vec![0x80; length];
        assert!(!has_zero(&text) && !has_zero(&vec![1; length]) && !has_zero(&vec![0xFF; length]));
        for at in 0..length {
            let mut text = text.clone();
            text[at] = 0;
            assert!(has_zero(&text), "{at} of {length}");
        }
    }
    // Padding that is not zero, at each place before an aligned member, near the start of the bytes and further in.
    for head in [1, 9, 3, 11, 7, 15] {
        let kind = format!("({}t)", "y".repeat(head));
        let padded = (head + 7) & !7;
        let value = vec![0; padded + 8];
        assert!(is_normal(&kind, &value), "{kind}");
        for at in head..padded {
            let mut value = value.clone();
            value[at] = 1;
            assert!(!is_normal(&kind, &value), "{at} in {kind}");
        }
        // Bytes before the padding are not part of it.
        assert!(is_normal(&kind, &[vec![9; head], value[head..].to_vec()].concat()));
    }
}
