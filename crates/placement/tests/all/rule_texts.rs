//! Rules as text: each sentence fits its numbers.

use stele_placement::schedule::judge::Rule;
use stele_types::StoreId;

#[test]
fn a_tolerance_is_named_only_where_a_move_could_lower_a_difference() {
    let leaders = |from, to| Rule::LeadersEven { from, to }.to_string();
    let text = leaders(200, 1950);
    assert!(text.contains("is 195.0 % of the mean"), "{text}");
    assert!(text.ends_with("that of the leader's store 20.0 %, which is less"), "{text}");
    assert!(leaders(1000, 1000).ends_with("100.0 %, which is as much"));
    let text = leaders(1050, 1000);
    assert!(text.ends_with("105.0 %, which is more by 5.0 %, within the tolerance"), "{text}");
    let from_store = StoreId(4);
    let data = |from, to| Rule::DataEven { from_store, from, to }.to_string();
    let text = data(900, 1100);
    let expected = "takes no replica: it holds 110.0 % of the mean for its weight, store 4 90.0 %, \
                    which is less";
    assert_eq!(text, expected);
    assert!(data(1010, 1000).ends_with("which is more by 1.0 %, within the tolerance"));
}
