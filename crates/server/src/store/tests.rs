use super::spawn;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const SIGABRT: i32 = 6;
/// Tells this test that it is the process that shall end.
const INSIDE: &str = "STELE_TEST_PANICS";

#[test]
fn fault_05_a_panic_in_a_stores_thread_ends_the_process() {
    if std::env::var_os(INSIDE).is_some() {
        let thread = spawn("stele-store-1".into(), || panic!("half done")).unwrap();
        let _ = thread.join();
        return;
    }
    let name = "store::tests::fault_05_a_panic_in_a_stores_thread_ends_the_process";
    let mut inside = Command::new(std::env::current_exe().unwrap());
    let ended = inside.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    assert_eq!(ended.status.signal(), Some(SIGABRT), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("half done") && said.contains("stele-store-1"), "{said}");
}
