use super::*;
use stele_types::Prng;

/// `NODE [NAME:VALUE]…`, with `!` before the node of a lost store and `-` before that of a tombstone.
fn stores(lines: &[&str]) -> (BTreeMap<StoreId, Store>, BTreeSet<StoreId>) {
    let (mut stores, mut lost) = (BTreeMap::new(), BTreeSet::new());
    for (line, id) in lines.iter().zip(1..) {
        let mut words = line.split_whitespace();
        let node = words.next().unwrap();
        let mut store = Store { id: StoreId(id), ..Store::default() };
        store.address = node.trim_start_matches(['!', '-']).to_owned();
        if node.starts_with('!') {
            lost.insert(store.id);
        }
        if node.starts_with('-') {
            store.state = StoreState::Tombstone;
        }
        let label = |word: &str| {
            let (name, value) = word.split_once(':').unwrap();
            (name.to_owned(), value.to_owned())
        };
        store.labels = words.map(label).collect();
        stores.insert(store.id, store);
    }
    (stores, lost)
}

/// Returns the label and the groups, as `label: 1 2 | 3`.
fn text(domains: &Domains) -> String {
    let mut groups: BTreeMap<Domain, Vec<String>> = BTreeMap::new();
    for (store, domain) in &domains.of {
        groups.entry(*domain).or_default().push(store.to_string());
    }
    let mut groups: Vec<String> = groups.into_values().map(|group| group.join(" ")).collect();
    groups.sort();
    format!("{}: {}", domains.label.as_deref().unwrap_or("-"), groups.join(" | "))
}

#[test]
fn domains_follow_the_widest_label_that_has_enough_values() {
    let table: [(&[&str], usize, &str); 14] = [
        (&[], 3, "-: "),
        (&["a", "a", "b"], 3, "-: 1 2 | 3"),
        (&["a r:1", "b r:2", "c r:3"], 3, "r: 1 | 2 | 3"),
        (&["a r:1", "b r:1", "c r:2"], 3, "-: 1 | 2 | 3"),
        (&["a r:1", "b r:1", "c r:2", "d r:3"], 3, "r: 1 2 | 3 | 4"),
        (&["a r:1", "b r:1", "c r:2", "d r:3"], 4, "-: 1 | 2 | 3 | 4"),
        // The narrower label is obeyed only where the wider one does not suffice.
        (&["a z:1 r:1", "b z:1 r:2", "c z:2 r:3", "d z:2 r:3"], 3, "r: 1 | 2 | 3 4"),
        (&["a z:1 r:1", "b z:1 r:2", "c z:2 r:3", "d z:3 r:4"], 3, "z: 1 2 | 3 | 4"),
        // Equal counts: by name.
        (&["a y:1 x:1", "b y:2 x:2", "c y:3 x:3", "d y:3 x:1"], 3, "x: 1 4 | 2 | 3"),
        // Stores without the label count by node, and stores of one node are one domain.
        (&["a r:1", "b r:1", "c", "d", "d"], 3, "r: 1 2 | 3 | 4 5"),
        (&["a r:1", "a r:2", "b r:2", "c", "d"], 3, "r: 1 2 3 | 4 | 5"),
        // Lost stores and tombstones make no label wide enough, and join no groups.
        (&["a r:1", "b r:1", "c r:2", "!d r:3"], 3, "-: 1 | 2 | 3 | 4"),
        (&["a r:1", "b r:2", "c r:3", "-a r:2", "!d r:3"], 3, "r: 1 | 2 | 3 5"),
        (&["a r:1", "b r:2", "c r:3", "!a r:2"], 3, "r: 1 4 | 2 | 3"),
    ];
    for (lines, copies, expected) in table {
        let (stores, lost) = stores(lines);
        assert_eq!(text(&Domains::new(&stores, copies, lost)), expected, "{lines:?}");
    }
}

#[test]
fn random_domains_hold_together_what_fails_together_and_are_enough() {
    for seed in 0..500 {
        let mut draw = Prng::new(seed);
        let lines: Vec<String> = (0..1 + draw.below(12))
            .map(|_| {
                let mut line = format!("n{}", draw.below(8));
                for (name, values) in [("zone", 2 + seed % 4), ("rack", 6)] {
                    if draw.below(5) > 0 {
                        line.push_str(&format!(" {name}:{}", draw.below(values)));
                    }
                }
                line
            })
            .collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (stores, lost) = stores(&lines);
        let domains = Domains::new(&stores, 3, lost);
        let label = domains.label.as_deref();
        for (a, b) in stores.values().flat_map(|a| stores.values().map(move |b| (a, b))) {
            let value = |store| label.and_then(|label| value_of(store, label));
            let together = a.address == b.address || value(a).is_some() && value(a) == value(b);
            let (of_a, of_b) = (domains.get(a.id), domains.get(b.id));
            assert!(!together || of_a == of_b, "seed {seed}: {lines:?}");
        }
        let count = domains.of.values().collect::<BTreeSet<_>>().len();
        assert!(label.is_none() || count >= 3, "seed {seed}: {lines:?}");
    }
}
