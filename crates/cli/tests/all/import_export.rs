//! Import and export of directories and JSON lines, also when the process is killed.

use crate::common::{content, run, run_with, stele, tree};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

struct Place {
    dir: tempfile::TempDir,
    store: PathBuf,
    source: PathBuf,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let (store, source) = (dir.path().join("store"), dir.path().join("source"));
    std::fs::create_dir(&source).unwrap();
    Place { dir, store, source }
}

fn fill(source: &Path, files: u64) {
    for number in 0..files {
        let folder = source.join(format!("folder{}/deep", number % 7));
        std::fs::create_dir_all(&folder).unwrap();
        let bytes = [0, 1, 63, 64, 65, 4096, 50_000][(number % 7) as usize] + number as usize;
        std::fs::write(folder.join(format!("file{number}")), content(number, bytes)).unwrap();
    }
}

fn import(place: &Place) -> String {
    format!("import --store $ --from {}", place.source.display())
}

fn export_equals_source(place: &Place) {
    let to = tempfile::tempdir_in(place.dir.path()).unwrap();
    run(&place.store, &format!("export --store $ --to {}", to.path().display())).ok();
    let (found, wanted) = (tree(to.path()), tree(&place.source));
    let names = |tree: &std::collections::BTreeMap<PathBuf, Vec<u8>>| -> Vec<PathBuf> {
        tree.keys().cloned().collect()
    };
    assert_eq!(names(&found), names(&wanted));
    assert!(found == wanted, "a file differs");
}

#[test]
fn a_folder_survives_the_round_trip() {
    let place = place();
    fill(&place.source, 100);
    std::fs::write(place.source.join(OsStr::from_bytes(b"not utf-8 \xff")), b"x").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", place.source.join("link")).unwrap();
    let ran =
        run(&place.store, &import(&place)).fails(1, "source/link: a symbolic link is not stored");
    assert!(ran.err.contains("imported 101 pairs"), "{ran:?}");
    assert!(ran.err.contains("0 unchanged, 0 expired, 1 skipped, 0 refused"), "{ran:?}");
    export_equals_source(&place);
    assert_eq!(run(&place.store, "count --store $").ok().text(), "101\n");
    run(&place.store, "verify --store $").ok();
}

#[test]
fn importing_again_writes_only_what_changed() {
    let place = place();
    fill(&place.source, 30);
    run(&place.store, &import(&place)).ok();
    std::fs::write(place.source.join("folder0/deep/file0"), b"changed").unwrap();
    let ran = run(&place.store, &import(&place)).ok();
    assert!(ran.err.contains("imported 1 pairs"), "{ran:?}");
    assert!(ran.err.contains("29 unchanged"), "{ran:?}");
    export_equals_source(&place);
}

#[test]
fn an_import_killed_three_times_is_resumed() {
    let place = place();
    fill(&place.source, 2000);
    let mut lasted = Duration::from_millis(30);
    for _ in 0..3 {
        let mut child = stele()
            .args(["import", "--store"])
            .arg(&place.store)
            .arg("--from")
            .arg(&place.source)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(lasted);
        child.kill().unwrap();
        child.wait().unwrap();
        lasted = lasted * 3 / 2;
    }
    run(&place.store, &import(&place)).ok();
    export_equals_source(&place);
    run(&place.store, "verify --store $").ok();
}

#[test]
fn a_file_beyond_the_limit_is_refused_and_the_rest_goes_on() {
    let place = place();
    fill(&place.source, 10);
    let large = std::fs::File::create(place.source.join("large")).unwrap();
    large.set_len((64 << 20) + 1).unwrap();
    let ran = run(&place.store, &import(&place)).fails(1, "the limit is 67108864");
    assert!(ran.err.contains("large: invalid request: value of 67108865 bytes"), "{ran:?}");
    assert!(ran.err.contains("imported 10 pairs") && ran.err.contains("1 refused"), "{ran:?}");
    std::fs::remove_file(place.source.join("large")).unwrap();
    export_equals_source(&place);
}

#[test]
fn json_lines_survive_the_round_trip_in_every_encoding() {
    let place = place();
    let lines = "{\"key\":\"a\",\"value\":\"1\"}\n\n{\"key_hex\":\"ff00\",\"value_base64\":\"gA==\"}\n\
                 {\"key\":\"a\",\"value\":\"2\"}\n";
    let ran = run_with(&place.store, "import --store $ --from -", lines.as_bytes()).ok();
    assert!(ran.err.contains("imported 3 pairs"), "{ran:?}");
    let wanted = run(&place.store, "scan --store $ --hex").ok();
    assert_eq!(wanted.text(), "61\t32\nff00\t80\n");
    for encoding in ["text", "hex", "base64"] {
        let file = place.dir.path().join(format!("{encoding}.jsonl"));
        let export = format!("export --store $ --to {} --encoding {encoding}", file.display());
        run(&place.store, &export).ok();
        let copy = place.dir.path().join(encoding);
        run(&copy, &format!("import --store $ --from {}", file.display())).ok();
        assert_eq!(run(&copy, "scan --store $ --hex").ok().text(), wanted.text(), "{encoding}");
    }
}

#[test]
fn a_line_that_is_no_pair_is_refused_and_the_rest_goes_on() {
    let place = place();
    let lines = b"{\"key\":\"a\",\"value\":\"1\"}\nnonsense\n{\"key\":\"b\",\"value\":\"2\"}\n";
    let ran = run_with(&place.store, "import --store $ --from -", lines).fails(1, "line 2");
    assert!(ran.err.contains("imported 2 pairs"), "{ran:?}");
    assert_eq!(run(&place.store, "count --store $").ok().text(), "2\n");
}

#[test]
fn keys_that_lead_outside_the_folder_are_refused() {
    let place = place();
    for key in ["../escape", "/absolute", "a/../../b", "good/one", "good/two"] {
        run(&place.store, &format!("put --store $ {key} v")).ok();
    }
    // A symbolic link in the destination that leads outside is not a directory to write into.
    let to = place.dir.path().join("to");
    std::fs::create_dir(&to).unwrap();
    std::os::unix::fs::symlink(&place.source, to.join("linked")).unwrap();
    run(&place.store, "put --store $ linked/file v").ok();
    let ran = run(&place.store, &format!("export --store $ --to {}", to.display()));
    let ran = ran.fails(1, "`../escape`").fails(1, "`/absolute`").fails(1, "`linked/file`");
    assert!(ran.err.contains("exported 2 pairs") && ran.err.contains("4 refused"), "{ran:?}");
    assert_eq!(tree(&to).len(), 2);
    assert!(tree(&place.source).is_empty() && !place.dir.path().join("escape").exists());
}

#[test]
fn a_key_that_is_a_folder_of_another_is_refused() {
    let place = place();
    for key in ["a", "a/b"] {
        run(&place.store, &format!("put --store $ {key} v")).ok();
    }
    let to = place.dir.path().join("to");
    let ran = run(&place.store, &format!("export --store $ --to {}", to.display()));
    ran.fails(1, "exists and is not a directory");
    assert_eq!(tree(&to).len(), 1);
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn modes_and_empty_folders_survive_the_round_trip_and_a_later_import() {
    let place = place();
    let (source, to) = (&place.source, place.dir.path().join("to"));
    std::fs::create_dir_all(source.join("bin/sub")).unwrap();
    std::fs::create_dir_all(source.join("empty/deep")).unwrap();
    for (file, mode) in [("bin/run", 0o755), ("bin/sub/secret", 0o600), ("plain", 0o644)] {
        std::fs::write(source.join(file), file).unwrap();
        set_mode(&source.join(file), mode);
    }
    for (folder, mode) in
        [("bin", 0o755), ("bin/sub", 0o500), ("empty", 0o700), ("empty/deep", 0o711)]
    {
        set_mode(&source.join(folder), mode);
    }
    run(&place.store, &import(&place)).ok();
    let export = format!("export --store $ --to {}", to.display());
    run(&place.store, &export).ok();
    let paths = ["bin", "bin/run", "bin/sub", "bin/sub/secret", "plain", "empty", "empty/deep"];
    let modes = |root: &Path| paths.map(|path| mode(&root.join(path)));
    assert_eq!(modes(&to), modes(source));
    assert_eq!(tree(&to), tree(source));
    assert!(run(&place.store, &import(&place)).ok().err.contains("imported 0 pairs"), "resumed");
    // Another folder is added, and one file has the usual mode now.
    set_mode(&source.join("bin/sub"), 0o755);
    std::fs::remove_dir_all(source.join("empty")).unwrap();
    set_mode(&source.join("bin/run"), 0o644);
    run(&place.store, &import(&place)).ok();
    let again = place.dir.path().join("again");
    run(&place.store, &export.replace(&to.display().to_string(), &again.display().to_string()))
        .ok();
    assert_eq!((mode(&again.join("bin/run")), mode(&again.join("empty/deep"))), (0o644, 0o711));
    // JSON lines hold the attributes as the pair that they are.
    let lines = place.dir.path().join("pairs.jsonl");
    run(&place.store, &format!("export --store $ --to {}", lines.display())).ok();
    let copy = place.dir.path().join("copy");
    run(&copy, &format!("import --store $ --from {}", lines.display())).ok();
    let third = place.dir.path().join("third");
    run(&copy, &format!("export --store $ --to {}", third.display())).ok();
    assert_eq!(mode(&third.join("bin/sub/secret")), 0o600);
    set_mode(&to.join("bin/sub"), 0o755);
}

#[test]
fn a_time_to_live_is_the_same_time_after_export_and_import() {
    let place = place();
    run(&place.store, "put --store $ --ttl 1000 a/long v").ok();
    run(&place.store, "put --store $ --ttl 2 short v").ok();
    run(&place.store, "put --store $ endless v").ok();
    let scan = |store: &Path| run(store, "scan --store $ --json").ok().text().to_owned();
    let wanted = scan(&place.store);
    assert_eq!(wanted.matches("expires_at_s").count(), 2, "{wanted}");
    let (folder, lines) = (place.dir.path().join("to"), place.dir.path().join("pairs.jsonl"));
    run(&place.store, &format!("export --store $ --to {}", folder.display())).ok();
    run(&place.store, &format!("export --store $ --to {}", lines.display())).ok();
    let scanned = place.dir.path().join("scanned.jsonl");
    std::fs::write(&scanned, &wanted).unwrap();
    std::thread::sleep(Duration::from_millis(3100));
    let expected: Vec<&str> = wanted.lines().filter(|line| !line.contains("short")).collect();
    for (number, from) in [&folder, &lines, &scanned].into_iter().enumerate() {
        let copy = place.dir.path().join(format!("copy{number}"));
        let ran = run(&copy, &format!("import --store $ --from {}", from.display())).ok();
        assert!(ran.err.contains("imported 2 pairs") && ran.err.contains("1 expired"), "{ran:?}");
        assert_eq!(scan(&copy).lines().collect::<Vec<_>>(), expected, "{}", from.display());
    }
    // Exported again without the expired pair, which must not keep its time.
    run(&place.store, "put --store $ short w").ok();
    run(&place.store, "put --store $ a/long w").ok();
    run(&place.store, &format!("export --store $ --to {}", folder.display())).ok();
    assert!(!folder.join(".stele-attributes").exists(), "no pair expires now");
}

#[test]
fn a_special_file_is_named_and_makes_the_import_incomplete() {
    let place = place();
    std::fs::write(place.source.join("file"), b"v").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place.source.join("socket")).unwrap();
    let ran = run(&place.store, &import(&place)).fails(1, "source/socket: a socket is not stored");
    assert!(ran.err.contains("imported 1 pairs") && ran.err.contains("1 skipped"), "{ran:?}");
}

#[test]
fn a_foreign_value_under_the_name_of_the_attributes_is_named() {
    let place = place();
    run(&place.store, "put --store $ .stele-attributes v").ok();
    std::fs::write(place.source.join("file"), b"v").unwrap();
    let to = place.dir.path().join("to");
    for line in [import(&place), format!("export --store $ --to {}", to.display())] {
        run(&place.store, &line).fails(2, "line 1 of `.stele-attributes`");
    }
}

#[test]
fn store_and_folder_must_lie_apart() {
    let place = place();
    let inside = place.source.join("store");
    run(&inside, "put --store $ k v").ok();
    run(&inside, &import(&place)).fails(2, "is inside");
    let to = format!("export --store $ --to {}", inside.join("log/x").display());
    run(&inside, &to).fails(2, "is inside the store");
}
