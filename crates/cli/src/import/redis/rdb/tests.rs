use super::*;

/// What a sink received, as text.
#[derive(Default)]
struct Received(Vec<String>);

fn shown(string: &RdbString) -> String {
    match string {
        RdbString::Held(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        RdbString::TooLong(bytes) => format!("<{bytes}>"),
    }
}

impl RdbSink for Received {
    fn begin(&mut self, name: &RdbName, kind: RdbKind) -> Result<(), Error> {
        let RdbName { database, name, expires_at_ms } = name;
        let name = String::from_utf8_lossy(name);
        let expiry = expires_at_ms.map_or(String::new(), |at_ms| format!(" until {at_ms}"));
        self.0.push(format!("{database} {name} {kind:?}{expiry}:"));
        Ok(())
    }

    fn member(
        &mut self,
        member: RdbString,
        value: Option<RdbString>,
        expires_at_ms: Option<u64>,
    ) -> Result<(), Error> {
        let value = value.map_or(String::new(), |value| format!("={}", shown(&value)));
        let expiry = expires_at_ms.map_or(String::new(), |at_ms| format!("@{at_ms}"));
        self.0.last_mut().unwrap().push_str(&format!(" {}{value}{expiry}", shown(&member)));
        Ok(())
    }

    fn end(&mut self) -> Result<(), Error> {
        self.0.last_mut().unwrap().push('.');
        Ok(())
    }

    fn left_out(&mut self, bytes: u64) -> Result<(), Error> {
        self.0.last_mut().unwrap().push_str(&format!(" left out {bytes}"));
        Ok(())
    }

    fn other(&mut self, name: &RdbName, kind: &str) -> Result<(), Error> {
        let text = String::from_utf8_lossy(&name.name).into_owned();
        self.0.push(format!("{} {text} is a {kind}", name.database));
        Ok(())
    }

    fn other_record(&mut self, kind: &str) -> Result<(), Error> {
        self.0.push(kind.to_owned());
        Ok(())
    }
}

fn received(bytes: &[u8]) -> Result<Vec<String>, RdbError> {
    let mut received = Received::default();
    read(bytes, &mut received).map(|()| received.0)
}

/// Returns a file with these records and without a checksum.
fn file(head: &str, records: &[&[u8]]) -> Vec<u8> {
    [head.as_bytes(), &records.concat(), b"\xff\0\0\0\0\0\0\0\0"].concat()
}

const MIN: u64 = 1_900_000_000_000;

fn ms(at_ms: u64) -> [u8; 8] {
    at_ms.to_le_bytes()
}

#[test]
fn databases_expiries_and_facts_come_before_their_values() {
    let seconds = [&b"\xfd"[..], &1_900_000_000u32.to_le_bytes()].concat();
    let millis = [&b"\xfc"[..], &ms(MIN + 1), b"\xf9\x07\xf8\x05"].concat();
    let before_1970 = [&b"\xfc"[..], &(-5i64).to_le_bytes()].concat();
    let bytes = file(
        "REDIS0009",
        &[
            b"\xfa\x03ver\x057.0.0\xfe\0\xfb\x03\x02",
            b"\0\x01a\x01x",
            &seconds,
            b"\0\x01b\xc0\x07\xfe\x03",
            &millis,
            b"\0\x01c\0",
            b"\0\x01d\0",
            &before_1970,
            b"\0\x01e\0",
            b"\xf5\x04code\xf4\x01\x02\x03",
        ],
    );
    let expected = [
        "0 a Text: x.",
        "0 b Text until 1900000000000: 7.",
        "3 c Text until 1900000000001: .",
        "3 d Text: .",
        "3 e Text until 0: .",
        "function library",
    ];
    assert_eq!(received(&bytes).unwrap(), expected);
}

#[test]
fn every_form_of_a_hash_and_a_set_is_read() {
    let listpack = b"\x0f\0\0\0\0\0\0\x81a\x02\x01\x01\x81b\x02\xff";
    let with_expiry = [
        &b"\x1f\0\0\0\0\0\x81f\x02\x81v\x02\0\x01\x81g\x02\x81w\x02\xf4"[..],
        &ms(MIN + 9),
        b"\x09\xff",
    ]
    .concat();
    let with_expiry = [&[with_expiry.len() as u8][..], &with_expiry].concat();
    let bytes = file(
        "REDIS0012",
        &[
            b"\x02\x01s\x02\x01a\xc1\0\x01",
            b"\x04\x01h\x01\x01f\x01v",
            b"\x09\x01z\x07\x01\x01k\x01\0v\xff",
            b"\x0b\x01i\x0c\x02\0\0\0\x02\0\0\0\x05\0\xff\xff",
            b"\x0d\x01l\x11\0\0\0\0\0\0\0\0\0\0\0\x01f\x03\x01v\xff",
            b"\x14\x01p",
            listpack,
            b"\x10\x01q\x0c\0\0\0\0\0\0\x81a\x02\x01\x01\xff",
            b"\x18\x01m",
            &ms(MIN),
            b"\x02\0\x01f\x01v\x0a\x01g\x01w",
            b"\x19\x01e",
            &ms(MIN),
            &with_expiry,
        ],
    );
    let expected = [
        "0 s Set: a 256.",
        "0 h Hash: f=v.",
        "0 z Hash: k=v.",
        "0 i Set: 5 -1.",
        "0 l Hash: f=v.",
        "0 p Set: a 1 b.",
        "0 q Hash: a=1.",
        "0 m Hash: f=v g=w@1900000000009.",
        "0 e Hash: f=v g=w@1900000000009.",
    ];
    assert_eq!(received(&bytes).unwrap(), expected);
}

#[test]
fn valkey_has_records_of_its_own() {
    let records = [
        &b"\x16\x01h\x02\x01f\x01v\xff\xff\xff\xff\xff\xff\xff\xff\x01g\x01w"[..],
        &ms(MIN),
        b"\xf3\x03job\x02\x01\x02\x03\x04",
    ];
    let bytes = file("VALKEY080", &records);
    assert_eq!(received(&bytes).unwrap(), ["0 h Hash: f=v g=w@1900000000000."]);
    let error = received(&file("REDIS0012", &records)).unwrap_err();
    assert!(
        matches!(&error, RdbError::Unknown { what, .. } if what.contains("type 22")),
        "{error}"
    );
    let error = received(&file("REDIS0012", &records[2..])).unwrap_err();
    assert!(matches!(&error, RdbError::Unknown { what, .. } if what.contains("243")), "{error}");
}

#[test]
fn other_values_are_skipped_and_named() {
    let id = [b"\x81".as_slice(), &(1u64 << 10).to_be_bytes()].concat();
    let pending = [&[0; 16][..], &[0; 8], b"\x01"].concat();
    let stream_1 = [
        &b"\x0f\x01s\x01\x01k\x01v\x01\x02\x03\x01\x01g\x02\x03\x01"[..],
        &pending,
        b"\x01\x01c",
        &[0; 8],
        b"\x01",
        &[0; 16],
    ]
    .concat();
    let stream_3 = [
        &b"\x15\x01t\x01\x01k\x01v\x01\x02\x03\x01\x02\x03\x04\x05\x01\x01g\x02\x03\x04\x01"[..],
        &pending,
        b"\x01\x01c",
        &[0; 16],
        b"\x01",
        &[0; 16],
    ]
    .concat();
    let bytes = file(
        "REDIS0011",
        &[
            b"\x01\x01a\x02\x01x\x01y",
            b"\x0a\x01b\x02zz",
            b"\x0e\x01c\x01\x02zz",
            b"\x12\x01d\x02\x01\x02zz\x02\x01z",
            b"\x03\x01e\x03\x01x\x011\x01y\xff\x01z\xfd",
            b"\x05\x01f\x01\x01x",
            &[0; 8],
            b"\x0c\x01g\x02zz\x11\x01h\x02zz",
            &stream_1,
            &stream_3,
            b"\x07\x01m",
            &id,
            b"\x01\x05\x02\x05\x03",
            &[0; 4],
            b"\x04",
            &[0; 8],
            b"\x05\x03abc\0\xf7",
            &id,
            b"\x02\x01\0",
            b"\0\x01z\x01v",
        ],
    );
    let expected = [
        "0 a is a list",
        "0 b is a list",
        "0 c is a list",
        "0 d is a list",
        "0 e is a zset",
        "0 f is a zset",
        "0 g is a zset",
        "0 h is a zset",
        "0 s is a stream",
        "0 t is a stream",
        "0 m is a module AAAAAAAAB",
        "record of module AAAAAAAAB",
        "0 z Text: v.",
    ];
    assert_eq!(received(&bytes).unwrap(), expected);
}

#[test]
fn what_is_not_an_rdb_file_or_is_too_new_is_refused() {
    for head in ["REDIS00x9", "REDI50009", "VALKEY08x", "VALKEY", ""] {
        let error = received(&file(head, &[])).unwrap_err();
        assert!(matches!(error, RdbError::Damaged { .. }), "{head}: {error}");
    }
    for head in ["REDIS0013", "VALKEY081"] {
        let error = received(&file(head, &[])).unwrap_err();
        assert!(matches!(error, RdbError::Unknown { .. }), "{head}: {error}");
    }
    let error = received(&file("REDIS0012", &[b"\x16\x01h"])).unwrap_err();
    assert!(error.to_string().contains("byte 9 has a value of type 22"), "{error}");
    assert!(is_rdb(b"REDIS0009") && is_rdb(b"VALKEY080"));
    assert!(!is_rdb(b"REDIS is fine") && !is_rdb(b"{\"key\""));
}

#[test]
fn a_file_that_ends_early_or_has_another_checksum_is_damaged() {
    let mut bytes = b"REDIS0009\0\x01a\x01x\xff".to_vec();
    let mut input = RdbInput::new(bytes.as_slice());
    input.skip(bytes.len() as u64).unwrap();
    bytes.extend(input.checksum().to_le_bytes());
    assert_eq!(received(&bytes).unwrap(), ["0 a Text: x."]);
    for at in 0..bytes.len() {
        assert!(received(&bytes[..at]).is_err(), "cut at {at}");
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(received(&damaged).is_err(), "damaged at {at}");
    }
    let old = b"REDIS0004\0\x01a\x01x\xff";
    assert_eq!(received(old).unwrap(), ["0 a Text: x."], "no checksum before version 5");
}

#[test]
fn a_string_that_is_too_long_is_skipped() {
    let long = input::STRING_BYTES_MAX + 1;
    let mut bytes = b"REDIS0009\0\x01a\x81".to_vec();
    bytes.extend((long as u64).to_be_bytes());
    bytes.extend(vec![0; long]);
    bytes.extend(b"\x10\x01h\x81");
    bytes.extend((long as u64).to_be_bytes());
    bytes.extend(vec![0; long]);
    bytes.extend(b"\0\x01b\x01x\xff\0\0\0\0\0\0\0\0");
    let expected = [
        format!("0 a Text: <{long}>."),
        format!("0 h Hash: left out {long}."),
        "0 b Text: x.".into(),
    ];
    assert_eq!(received(&bytes).unwrap(), expected);
}
