//! Stores of a dialling node that are not heard, as welcomes and rejections name them.

use super::hello::{bounded, take_starts};
use stele_node::succession::Refusal;
use stele_types::{Lineage, StoreId, varint};

/// Most bytes of the refusals of one answer. Those beyond are not named; the stores are not heard.
const REFUSALS_BYTES_MAX: usize = 4 << 10;
/// Most stores of one answer.
const STORES_MAX: u64 = 256;

/// Store of a dialling node that is not heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedStore {
    /// The store.
    pub store: StoreId,
    /// Why it is not heard.
    pub refusal: Refusal,
    /// Starts of the other run.
    pub rival: Lineage,
    /// `host:port` of its node.
    pub rival_at: String,
    /// Message for the operator, with the remedy.
    pub text: String,
}

/// Appends those that fit.
pub fn put(out: &mut Vec<u8>, refused: &[RefusedStore]) {
    let (mut encoded, mut count, mut bytes) = (Vec::new(), 0, 0);
    for it in refused {
        let mut one = Vec::new();
        varint::put(&mut one, it.store.0);
        one.push(it.refusal as u8);
        varint::put_bytes(&mut one, &it.rival.to_bytes());
        varint::put_bytes(&mut one, it.rival_at.as_bytes());
        varint::put_bytes(&mut one, bounded(&it.text).as_bytes());
        bytes += one.len();
        if bytes > REFUSALS_BYTES_MAX && count > 0 {
            break;
        }
        count += 1;
        encoded.extend(one);
    }
    varint::put(out, count);
    out.extend(encoded);
}

/// Takes what [`put`] appended. Skips reasons that only newer versions know.
pub fn take(rest: &mut &[u8]) -> Option<Vec<RefusedStore>> {
    let count = varint::take(rest).filter(|count| *count <= STORES_MAX)?;
    let mut refused = Vec::new();
    for _ in 0..count {
        let store = StoreId(varint::take(rest)?);
        let (&reason, after) = rest.split_first()?;
        *rest = after;
        let rival = take_starts(rest)?;
        let rival_at = String::from_utf8_lossy(varint::take_bytes(rest)?).into_owned();
        let text = String::from_utf8_lossy(varint::take_bytes(rest)?).into_owned();
        if let Some(refusal) = Refusal::from_number(reason) {
            refused.push(RefusedStore { store, refusal, rival, rival_at, text });
        }
    }
    Some(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::StartId;

    fn refused(store: u64, text: &str) -> RefusedStore {
        let rival = Lineage::new([StartId(7), StartId(u128::MAX)]);
        RefusedStore {
            store: StoreId(store),
            refusal: Refusal::Conflict,
            rival,
            rival_at: "b:1".to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn refusals_survive_the_round_trip_and_every_cut_is_refused() {
        let all = [refused(3, "one"), refused(300, "other")];
        let mut bytes = Vec::new();
        put(&mut bytes, &all);
        assert_eq!(take(&mut &bytes[..]).as_deref(), Some(&all[..]));
        (0..bytes.len()).for_each(|cut| assert_eq!(take(&mut &bytes[..cut]), None, "{cut}"));
    }

    #[test]
    fn what_does_not_fit_into_an_answer_is_left_out() {
        let all: Vec<_> = (0..200).map(|store| refused(store, &"x".repeat(300))).collect();
        let mut bytes = Vec::new();
        put(&mut bytes, &all);
        assert!(bytes.len() <= REFUSALS_BYTES_MAX + 8, "{}", bytes.len());
        assert!(take(&mut &bytes[..]).is_some_and(|some| some.len() > 5 && all.starts_with(&some)));
    }
}
