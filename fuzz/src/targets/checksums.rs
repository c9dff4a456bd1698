//! Correction of checksums. The encoders describe the layouts used here.

use stele_types::checksum::{Crc32c, crc32c};

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn set(bytes: &mut [u8], at: usize, word: u32) {
    if let Some(to) = bytes.get_mut(at..at + 4) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

fn close(bytes: &mut [u8], from: usize, at: usize) {
    if let Some(covered) = bytes.get(from..at) {
        let sum = crc32c(covered);
        set(bytes, at, sum);
    }
}

/// Corrects a segment (`log/format/header.rs` and `frame.rs`): a header, then frames on block
/// boundaries.
pub(super) fn segment(bytes: &mut [u8]) {
    close(bytes, 0, 44);
    let Some(block) = word(bytes, 12).map(|block| block as usize).filter(|block| *block > 0) else {
        return;
    };
    let (file, mut chain) = (word(bytes, 24).unwrap_or(0), word(bytes, 36).unwrap_or(0));
    let store = bytes.get(16..24).unwrap_or_default().to_vec();
    let mut at = block;
    while let Some(length) = word(bytes, at) {
        let end = at + 24 + length as usize;
        if end > bytes.len() || word(bytes, at + 20).is_none() {
            return;
        }
        set(bytes, at + 8, file);
        set(bytes, at + 12, at as u32);
        set(bytes, at + 16, chain);
        let mut crc = Crc32c::new();
        crc.update(&store).update(&bytes[at..at + 4]).update(&bytes[at + 8..at + 24]);
        chain = crc.update(&bytes[at + 24..end]).finish();
        set(bytes, at + 4, chain);
        at = end.next_multiple_of(block);
    }
}

/// Corrects the header and footer of sidecars, retained tombstones and sorted files.
fn header_and_footer(bytes: &mut [u8]) {
    close(bytes, 0, 28);
    let Some(footer) = bytes.len().checked_sub(80) else { return };
    if let Some(end) = bytes.get_mut(footer + 16..footer + 24) {
        end.copy_from_slice(&(footer as u64).to_le_bytes());
    }
    close(bytes, footer, footer + 76);
}

/// Corrects a file of chunks (`log/segment/chunks.rs`).
pub(super) fn chunks(bytes: &mut [u8]) {
    header_and_footer(bytes);
    let file = bytes.get(12..16).unwrap_or_default().to_vec();
    let store = bytes.get(16..24).unwrap_or_default().to_vec();
    let Some(data_end) = bytes.len().checked_sub(80) else { return };
    let mut at = 32;
    while let Some(length) = word(bytes, at) {
        let end = at + 8 + length as usize;
        if end > data_end {
            return;
        }
        let mut crc = Crc32c::new();
        crc.update(&store).update(&file).update(&(at as u64).to_le_bytes());
        let sum = crc.update(&bytes[at + 8..end]).finish();
        set(bytes, at + 4, sum);
        at = end;
    }
}

/// Corrects a sorted file (`log/sorted/mod.rs`).
pub(super) fn sorted(bytes: &mut [u8]) {
    header_and_footer(bytes);
    let file = bytes.get(12..16).unwrap_or_default().to_vec();
    let store = bytes.get(16..24).unwrap_or_default().to_vec();
    let Some(data_end) = bytes.len().checked_sub(80) else { return };
    let mut at = 32;
    while let (Some(value_bytes), Some(word)) = (word(bytes, at), word(bytes, at + 24)) {
        let key_bytes = (word & 0xffff) as usize;
        let end = at + 30 + key_bytes + 2 + value_bytes as usize;
        if end > data_end {
            return;
        }
        let mut crc = Crc32c::new();
        crc.update(&store).update(&file).update(&(at as u32).to_le_bytes());
        crc.update(&bytes[at..at + 26]).update(&bytes[at + 30..at + 30 + key_bytes]);
        let sum = crc.finish();
        set(bytes, at + 26, sum);
        at = end;
    }
}

/// Corrects a manifest (`index/manifest/frame.rs`).
pub(super) fn manifest(bytes: &mut [u8]) {
    close(bytes, 0, 16);
    let number = bytes.get(12..16).unwrap_or_default().to_vec();
    let mut chain = word(bytes, 16).unwrap_or(0);
    let mut at = 32;
    while let Some(length) = word(bytes, at + 4) {
        let end = at + 16 + length as usize;
        if end > bytes.len() || !bytes[at..].starts_with(b"EDIT") {
            return;
        }
        set(bytes, at + 8, chain);
        let mut crc = Crc32c::new();
        crc.update(&number).update(&(at as u64).to_le_bytes()).update(&bytes[at + 4..at + 8]);
        chain = crc.update(&bytes[at + 8..at + 12]).update(&bytes[at + 16..end]).finish();
        set(bytes, at + 12, chain);
        at = end.next_multiple_of(8);
    }
}

/// Corrects a run (`index/run`): blocks, fences, filter and hash index, each with a trailer, and
/// the footer.
pub(super) fn run(bytes: &mut [u8], id: u64) {
    let Some(tail) = bytes.len().checked_sub(20) else { return };
    close_footer(bytes, tail);
    let Some([data, fences, filter, hash]) = parts(&bytes[..tail]) else { return };
    let mut at = 0;
    while let Some(length) = word(bytes, at).filter(|_| at < data) {
        let end = (at + 4).saturating_add(length as usize);
        if end.saturating_add(4) > data {
            break;
        }
        close_part(bytes, id, at, end);
        at = end + 4;
    }
    let mut at = data;
    for length in [fences, filter, hash] {
        let end = at.saturating_add(length);
        if length >= 4 && end <= bytes.len() {
            close_part(bytes, id, at, end - 4);
        }
        at = end;
    }
}

fn close_footer(bytes: &mut [u8], tail: usize) {
    let Some(from) = word(bytes, tail).and_then(|body| tail.checked_sub(body as usize)) else {
        return;
    };
    close(bytes, from, tail + 8);
}

/// Returns the sizes of the data and the three parts, read backwards from the footer's end.
fn parts(body: &[u8]) -> Option<[usize; 4]> {
    let mut end = body.len().checked_sub(2)?;
    let mut sizes = [0; 4];
    for size in sizes.iter_mut().rev() {
        let more = body[..end.checked_sub(1)?].iter().rev().take_while(|byte| **byte >= 0x80);
        let from = end - 1 - more.count();
        *size = usize::try_from(stele_types::varint::take(&mut &body[from..end])?).ok()?;
        end = from;
    }
    sizes.iter().all(|size| *size <= body.len()).then_some(sizes)
}

fn close_part(bytes: &mut [u8], id: u64, from: usize, at: usize) {
    let place = (id ^ (from as u64).rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let sum = crc32c(&bytes[from..at]) ^ (place >> 32) as u32;
    set(bytes, at, sum);
}

/// Corrects transport frames (`server/transport/frame.rs`).
pub(super) fn frames(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(length) = word(bytes, at).filter(|_| at + 12 <= bytes.len()) {
        let end = at + 12 + length as usize;
        if let Some(body) = bytes.get(at + 12..end) {
            let sum = crc32c(body);
            set(bytes, at + 4, sum);
        }
        let check = crc32c(&bytes[at..at + 9]).to_le_bytes();
        bytes[at + 9..at + 12].copy_from_slice(&check[..3]);
        at = end;
    }
}

/// Corrects an identity file (`engine/identity.rs`): the last line is the checksum of the lines
/// before it.
pub(super) fn identity(bytes: &mut Vec<u8>) {
    let found = bytes.windows(7).position(|window| window == b"crc32c ");
    if let Some(at) = found {
        bytes.truncate(at);
        let line = format!("crc32c {:08x}\n", crc32c(bytes));
        bytes.extend_from_slice(line.as_bytes());
    }
}
