//! Every operation over several regions, also while the regions change.

use crate::fake::{self, Fake};
use bytes::Bytes;
use stele_client::{
    Client, Copied, CopiedPair, PutPair, ScanOptions, Swap, Ttl, Values, WriteIfRequest,
};
use stele_proto::stele::kv::v1::Put;
use stele_types::command::Unfit;
use stele_types::{ColumnFamily, Error, KeyRange};

pub(crate) fn start_three_regions() -> Fake {
    let fake = Fake::start(3);
    {
        let mut state = fake.state();
        state.split("g", 11);
        state.split("p", 12);
        state.leaders.extend([(11, 2), (12, 3), (2, 1)]);
    }
    fake
}

async fn three_regions() -> (Fake, Client) {
    let fake = start_three_regions();
    let client = Client::connect(&fake.addresses()[..1]).await.unwrap();
    (fake, client)
}

pub(crate) fn letters() -> Vec<PutPair> {
    (b'a'..=b'z').map(|c| PutPair::new(vec![c], vec![c; 3])).collect()
}

fn keys(pairs: &[stele_client::Pair]) -> String {
    pairs.iter().map(|pair| String::from_utf8_lossy(&pair.key).into_owned()).collect()
}

#[tokio::test]
async fn single_keys_are_put_read_and_removed() {
    let (fake, client) = three_regions().await;
    client.put("b", "1").await.unwrap();
    client.put("z", "").await.unwrap();
    assert_eq!(client.get("b").await.unwrap().unwrap(), "1");
    assert_eq!(client.get("z").await.unwrap().unwrap(), "");
    assert_eq!(client.get("c").await.unwrap(), None);
    client.delete("b").await.unwrap();
    assert_eq!(client.get("b").await.unwrap(), None);
    client.put_with_ttl("t", "v", Ttl::Seconds(9)).await.unwrap();
    assert_eq!(client.ttl("t").await.unwrap(), Some(Ttl::Seconds(9)));
    assert_eq!(client.ttl("z").await.unwrap(), Some(Ttl::Endless));
    assert_eq!(client.ttl("none").await.unwrap(), None);
    assert_eq!(client.cluster().0, fake::CLUSTER);
    drop(fake);
}

#[tokio::test]
async fn a_swap_tells_what_was_there() {
    let (_fake, client) = three_regions().await;
    let swap = async |expected: Option<&'static str>, new: Option<&'static str>| {
        let bytes = |text: Option<&'static str>| text.map(Bytes::from);
        client.compare_and_swap("k", bytes(expected), bytes(new), Ttl::Endless).await.unwrap()
    };
    assert_eq!(swap(None, Some("1")).await, Swap { succeeded: true, previous: None });
    let refused = swap(None, Some("2")).await;
    assert_eq!(refused, Swap { succeeded: false, previous: Some("1".into()) });
    assert!(swap(Some("1"), None).await.succeeded);
    assert_eq!(client.get("k").await.unwrap(), None);
}

#[tokio::test]
async fn a_read_modify_write_returns_what_it_found_or_made() {
    let (fake, client) = three_regions().await;
    assert_eq!(client.put_if_absent("k", "1").await.unwrap(), None);
    assert_eq!(client.put_if_absent("k", "2").await.unwrap().unwrap(), "1");
    assert_eq!(client.put_if_present("none", "1").await.unwrap(), None);
    assert_eq!(client.put_if_present("k", "3").await.unwrap().unwrap(), "1");
    assert_eq!(client.put_if_present("k", "1").await.unwrap().unwrap(), "3");
    assert_eq!(client.increment("k", 41).await.unwrap(), 42);
    assert_eq!(client.increment("k", -50).await.unwrap(), -8);
    assert_eq!(client.increment("none", 3).await.unwrap(), 3);
    assert_eq!(client.append("k", "00").await.unwrap(), 4);
    assert_eq!(client.get_and_delete("k").await.unwrap().unwrap(), "-800");
    assert_eq!(client.get_and_delete("k").await.unwrap(), None);
    let ttl = Ttl::Seconds(9);
    assert_eq!(client.put_if_absent_with_ttl("t", "x", ttl).await.unwrap(), None);
    let replaced = client.put_if_present_with_ttl("t", "x", ttl).await.unwrap();
    assert_eq!(replaced.unwrap(), "x");
    assert_eq!(client.append("t", "y").await.unwrap(), 2);
    assert_eq!(client.ttl("t").await.unwrap(), Some(ttl));
    let lock = client.family(ColumnFamily::Lock);
    assert_eq!(lock.increment("t", 1).await.unwrap(), 1);
    assert_eq!(fake.state().value("t"), Some(&b"xy"[..]));
}

#[tokio::test]
async fn a_pair_comes_with_the_time_that_it_has_left_and_is_written_under_conditions() {
    let (_fake, client) = three_regions().await;
    assert_eq!(client.get_with_ttl("k").await.unwrap(), None);
    client.put_with_ttl("k", "1", Ttl::Seconds(9)).await.unwrap();
    let found = client.get_with_ttl("k").await.unwrap();
    assert_eq!(found, Some(("1".into(), Ttl::Seconds(9))));
    let values = |digests: &[&'static str]| {
        let digests = digests.iter().map(|digest| Bytes::from(*digest)).collect();
        Some(Values { all: false, digests })
    };
    let request = WriteIfRequest {
        key: "k".into(),
        if_match: values(&["0", "1"]),
        put: Some(Put { value: "2".into(), ttl: 0 }),
        ..WriteIfRequest::default()
    };
    for is_done in [true, false] {
        assert_eq!(client.write_if(request.clone()).await.unwrap().done, is_done);
        let found = client.get_with_ttl("k").await.unwrap();
        assert_eq!(found, Some(("2".into(), Ttl::Endless)));
    }
    let lock = client.family(ColumnFamily::Lock);
    let created = WriteIfRequest { if_match: None, if_none_match: values(&["2"]), ..request };
    assert!(lock.write_if(created).await.unwrap().done, "another family");
}

#[tokio::test]
async fn existence_of_keys_of_several_regions_comes_in_their_order() {
    let (_fake, client) = three_regions().await;
    for key in ["a", "m", "z"] {
        client.put(key, "v").await.unwrap();
    }
    let keys = ["z", "absent", "a", "m", "n", "a"].map(Bytes::from).to_vec();
    let exist = client.exist(keys).await.unwrap();
    assert_eq!(exist, [true, false, true, true, false, true]);
    assert!(client.exist(Vec::new()).await.unwrap().is_empty());
    let lock = client.family(ColumnFamily::Lock);
    assert_eq!(lock.exist(vec!["a".into()]).await.unwrap(), [false]);
}

#[tokio::test]
async fn a_value_that_allows_no_change_is_a_refusal_of_the_request() {
    let (fake, client) = three_regions().await;
    client.put("text", "x").await.unwrap();
    client.put("most", i64::MAX.to_string()).await.unwrap();
    let refusals = [
        (client.increment("text", 1).await.map(drop), Unfit::NotANumber),
        (client.increment("most", 1).await.map(drop), Unfit::Overflow),
        (
            client.append("text", vec![0; 64 << 10]).await.map(drop),
            Unfit::TooLong { bytes: 65_537 },
        ),
    ];
    for (found, unfit) in refusals {
        let Err(Error::Invalid(text)) = found else { panic!("{unfit:?}: {found:?}") };
        assert_eq!(text, unfit.to_string());
    }
    assert_eq!(fake.state().value("text"), Some(&b"x"[..]));
}

#[tokio::test]
async fn families_are_spaces_of_their_own() {
    let (_fake, client) = three_regions().await;
    let lock = client.family(ColumnFamily::Lock);
    client.put("k", "default").await.unwrap();
    lock.put("k", "lock").await.unwrap();
    assert_eq!(client.get("k").await.unwrap().unwrap(), "default");
    assert_eq!(lock.get("k").await.unwrap().unwrap(), "lock");
    assert_eq!(
        lock.scan(KeyRange::all(), ScanOptions::default()).collect().await.unwrap().len(),
        1
    );
}

#[tokio::test]
async fn batches_go_to_all_their_regions() {
    let (fake, client) = three_regions().await;
    let mut pairs = letters();
    pairs.push(PutPair { ttl: Ttl::Seconds(5), ..PutPair::new("a", "last") });
    client.batch_put(pairs).await.unwrap();
    let requested: Vec<Bytes> = ["z", "none", "a", "h", "a"].map(Bytes::from).into();
    let values = client.batch_get(requested).await.unwrap();
    let values: Vec<Option<&[u8]>> = values.iter().map(Option::as_deref).collect();
    let last = Some(&b"last"[..]);
    assert_eq!(values, [Some(&b"zzz"[..]), None, last, Some(&b"hhh"[..]), last]);
    assert_eq!(client.ttl("a").await.unwrap(), Some(Ttl::Seconds(5)));
    assert_eq!(client.ttl("b").await.unwrap(), Some(Ttl::Endless));
    client.batch_delete(["a", "m", "z"].map(Bytes::from).into()).await.unwrap();
    assert_eq!(fake.state().pairs.len(), 23);
    let stores: std::collections::BTreeSet<u64> =
        fake.state().calls.iter().map(|(_, store)| *store).collect();
    assert_eq!(stores.len(), 3);
}

#[tokio::test]
async fn scans_cross_regions_both_ways_and_stop_at_their_limit() {
    let (_fake, client) = three_regions().await;
    client.batch_put(letters()).await.unwrap();
    let scan = async |range: KeyRange, options: ScanOptions| {
        keys(&client.scan(range, options).collect().await.unwrap())
    };
    let all = "abcdefghijklmnopqrstuvwxyz";
    let backwards: String = all.chars().rev().collect();
    let forward = ScanOptions::default();
    let reverse = ScanOptions { reverse: true, ..forward };
    assert_eq!(scan(KeyRange::all(), forward).await, all);
    assert_eq!(scan(KeyRange::all(), reverse).await, backwards);
    assert_eq!(scan(KeyRange::new("f", "q"), forward).await, "fghijklmnop");
    assert_eq!(scan(KeyRange::new("f", "q"), reverse).await, "ponmlkjihgf");
    assert_eq!(scan(KeyRange::new("g", "p"), reverse).await, "onmlkjihg");
    assert_eq!(scan(KeyRange::new("q", "f"), forward).await, "");
    for limit in [0, 1, 6, 7, 25, 26, 27] {
        let options = ScanOptions { limit: Some(limit), ..forward };
        assert_eq!(scan(KeyRange::all(), options).await, all[..limit.min(26)]);
        let options = ScanOptions { limit: Some(limit), ..reverse };
        assert_eq!(scan(KeyRange::all(), options).await, backwards[..limit.min(26)]);
    }
    let only = ScanOptions { keys_only: true, ..forward };
    let found = client.scan(KeyRange::prefix(b"c"), only).collect().await.unwrap();
    assert_eq!((found.len(), found[0].value.len()), (1, 0));
}

#[tokio::test]
async fn a_cold_reverse_scan_finds_the_region_below_a_boundary() {
    let (fake, client) = three_regions().await;
    client.batch_put(letters()).await.unwrap();
    let cold = Client::connect(&fake.addresses()).await.unwrap();
    let reverse = ScanOptions { reverse: true, limit: Some(2), ..ScanOptions::default() };
    let found = cold.scan(KeyRange::new("", "p"), reverse).collect().await.unwrap();
    assert_eq!(keys(&found), "on");
    let cold = Client::connect(&fake.addresses()).await.unwrap();
    let found = cold.scan(KeyRange::all(), reverse).collect().await.unwrap();
    assert_eq!(keys(&found), "zy");
}

#[tokio::test]
async fn a_split_in_the_middle_of_a_scan_loses_and_repeats_nothing() {
    for reverse in [false, true] {
        let (fake, client) = three_regions().await;
        let numbers = (0..200u32).map(|n| PutPair::new(format!("k{n:03}"), "v")).collect();
        client.batch_put(numbers).await.unwrap();
        let options = ScanOptions { reverse, ..ScanOptions::default() };
        let mut scan = client.scan(KeyRange::all(), options);
        let mut found = scan.next_page().await.unwrap().unwrap();
        fake.state().split("k010", 50);
        fake.state().split("k100", 51);
        fake.state().split("k190", 52);
        while let Some(page) = scan.next_page().await.unwrap() {
            found.extend(page);
        }
        let mut expected: Vec<String> = (0..200).map(|n| format!("k{n:03}")).collect();
        if reverse {
            expected.reverse();
        }
        let found: Vec<String> =
            found.iter().map(|pair| String::from_utf8_lossy(&pair.key).into_owned()).collect();
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn a_split_under_a_batch_sends_each_part_to_its_region() {
    let (fake, client) = three_regions().await;
    client.batch_put(letters()).await.unwrap();
    fake.state().split("c", 60);
    fake.state().split("j", 61);
    fake.state().leaders.extend([(60, 2), (61, 1)]);
    client.batch_put(letters()).await.unwrap();
    let requested = letters().into_iter().map(|pair| pair.key).collect();
    assert!(client.batch_get(requested).await.unwrap().iter().all(Option::is_some));
}

#[tokio::test]
async fn ranges_are_removed_and_summed_region_by_region() {
    let (fake, client) = three_regions().await;
    client.batch_put(letters()).await.unwrap();
    let checksum = client.checksum(KeyRange::all()).await.unwrap();
    assert_eq!((checksum.pairs, checksum.bytes), (26, 26 * 4));
    client.delete_range(KeyRange::new("f", "q")).await.unwrap();
    assert_eq!(client.checksum(KeyRange::all()).await.unwrap().pairs, 15);
    client.delete_range(KeyRange::new("x", "")).await.unwrap();
    assert_eq!(fake.state().pairs.len(), 12);
    client.delete_range(KeyRange::new("b", "a")).await.unwrap();
    client.delete_range(KeyRange::all()).await.unwrap();
    assert!(fake.state().pairs.is_empty());
}

/// Copies everything. Returns the keys, and the number of parts with keys.
async fn copied(client: &Client, mut between: impl FnMut(usize)) -> (String, usize) {
    let mut copy = client.copy(KeyRange::all());
    let (mut keys, mut parts, mut seen, mut next) = (String::new(), 0, 0, Bytes::new());
    while let Some(copied) = copy.next().await.unwrap() {
        match copied {
            Copied::Begin { start, index, .. } => {
                assert_eq!(start, next, "the parts tile all keys");
                assert!(index >= 5);
            }
            Copied::Pairs(pairs) => {
                let text = |pair: &CopiedPair| String::from_utf8_lossy(&pair.key).into_owned();
                pairs.iter().for_each(|pair| keys += &text(pair));
                assert!(pairs.iter().all(|pair| pair.value == vec![pair.key[0]; 3]));
                between(seen);
                seen += 1;
            }
            Copied::End { end } => {
                parts += usize::from(end.is_some());
                next = end.unwrap_or(next);
            }
        }
    }
    assert!(next.is_empty(), "the last part has no end");
    (keys, parts)
}

#[tokio::test]
async fn a_copy_has_all_pairs_once_while_regions_change_and_streams_break() {
    let (fake, client) = three_regions().await;
    client.batch_put(letters()).await.unwrap();
    let all: String = ('a'..='z').collect();
    assert_eq!(copied(&client, |_| ()).await, (all.clone(), 3));
    fake.state().interrupted_copies = 3;
    assert_eq!(copied(&client, |_| ()).await, (all.clone(), 6));
    // Regions change between the responses of a part, which is of one view, and before the next part.
    let change = |seen| match seen {
        0 => fake.state().split("d", 13),
        4 => fake.state().split("t", 14),
        8 => fake.state().merge("t"),
        _ => {}
    };
    assert_eq!(copied(&client, change).await.0, all);
    let other = client.family(ColumnFamily::Lock);
    assert_eq!(copied(&other, |_| ()).await.0, "");
}
