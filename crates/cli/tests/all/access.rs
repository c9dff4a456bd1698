//! Grants and tokens, as an administrator gives them to clients of a cluster of processes.

use crate::common::{Ran, run};
use crate::node_process::until;
use crate::tls::Certificates;
use std::path::Path;
use std::time::{Duration, Instant};

fn ran(line: &str) -> Ran {
    run(Path::new("."), line)
}

#[test]
fn grants_are_in_force_on_every_node_and_after_a_restart() {
    let certificates = Certificates::new(&["n1", "n2"]);
    certificates.create("client other");
    let root = tempfile::tempdir().unwrap();
    let dirs = ["a", "b"].map(|name| root.path().join(name));
    let optional = ["--client-certificates", "optional", "--tick-ms", "20"];
    let first = certificates.start(&dirs[0], "n1", &optional);
    let admin = certificates.of_client("root");
    ran(&format!("ctl --cluster {} {admin} admit n2", first.address)).ok();
    let join = [&optional[..2], &["--join", first.address.as_str()]].concat();
    let second = certificates.start(&dirs[1], "n2", &join);
    let [app, other, admin] = ["app", "other", "root"].map(|name| certificates.of_client(name));
    let regions = format!("ctl --cluster {} {admin} --json regions", first.address);
    until(&dirs[0], &regions, |row| row.contains("\"stores\":[1,2]"));
    // Through the node that does not lead the placement group.
    let ctl = |flags: &str, words: &str| {
        ran(&format!("ctl --cluster {} {flags} access {words}", second.address))
    };
    let data = |address: &str, flags: &str, words: &str| {
        let (command, rest) = words.split_once(' ').unwrap();
        ran(&format!("{command} --cluster {address} {flags} {rest}"))
    };
    assert!(ctl(&admin, "list").ok().text().contains("access is off"));
    data(&first.address, &other, "put a/1 v").ok();
    ctl(&app, "grant app --role admin").fails(1, "it is for administrators");
    ctl(&admin, "grant app --role read,write --prefix a/").ok();
    for node in [&first, &second] {
        data(&node.address, &app, "put a/1 w").ok();
        assert_eq!(data(&node.address, &app, "get a/1").ok().text().trim(), "w");
        data(&node.address, &app, "put b/1 w")
            .fails(1, "client app lacks the right write of key \"b/1\"");
        data(&node.address, &other, "get a/1").fails(1, "it has no grant");
        data(&node.address, &admin, "put b/1 w").ok();
    }
    data(&first.address, &app, "scan --prefix a/").ok();
    data(&first.address, &app, "scan --prefix b/").fails(1, "client app lacks the right read");
    // A token, of which only the hash is kept.
    let created = ctl(&admin, "token ci --role read --prefix a/ --json").ok().json();
    let token = created["token"].as_str().unwrap();
    let file = certificates.file("token");
    std::fs::write(&file, format!("{token}\n")).unwrap();
    let bearer = format!("--ca {} --token-file {file}", certificates.file("ca.pem"));
    assert_eq!(data(&second.address, &bearer, "get a/1").ok().text().trim(), "w");
    data(&second.address, &bearer, "put a/1 x").fails(1, "token:ci lacks the right write");
    ctl(&bearer, "list").fails(1, "it is for administrators");
    assert!(ctl(&admin, "list").ok().text().contains("token:ci"));
    // A node that starts enforces them, whatever it reaches: here its directory's copy counts.
    second.stop();
    let copy = std::fs::read_to_string(dirs[1].join("access.json")).unwrap();
    assert!(copy.contains("token:ci") && !copy.contains(token), "{copy}");
    let second = certificates.start(&dirs[1], "n2", &optional[..2]);
    data(&second.address, &other, "get a/1").fails(1, "it has no grant");
    let ctl = |words: &str| ran(&format!("ctl --cluster {} {admin} access {words}", first.address));
    let started = Instant::now();
    ctl("revoke app").ok();
    assert!(started.elapsed() < Duration::from_secs(5));
    data(&second.address, &app, "get a/1").fails(1, "it has no grant");
    ctl("revoke token:ci").fails(1, "--turn-off");
    ctl("revoke token:ci --turn-off").ok();
    data(&second.address, &bearer, "get a/1").fails(1, "unknown or was revoked");
    assert_eq!(data(&second.address, &other, "get a/1").ok().text().trim(), "w");
}
