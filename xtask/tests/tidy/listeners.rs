//! Where programs can be spoken to by others, and the test that turns a stranger away at each place.

use std::collections::BTreeMap;

use crate::workspace::{packages, read, sources, workspace};

/// What makes a place that others can connect to.
const LISTENS: [&str; 7] = [
    "TcpListener::bind",
    "TcpListener::from",
    "UnixListener::bind",
    "UnixListener::from",
    "UnixDatagram::bind",
    "UdpSocket::bind",
    "mpi::initialize",
];

/// A file that listens, who may speak there, and the test of that: the file that it is in, and its name.
const LISTENERS: [(&str, &str, &str, &str); 5] = [
    (
        "burn-dist-gpu/src/symmetric/os.rs",
        "processes of this user: the system says whose the other end is",
        "burn-dist-gpu/src/symmetric/tests.rs",
        "what_another_user_sends_is_dropped",
    ),
    (
        "burn-dist-comm/src/transport/mpi.rs",
        "whom MPI lets in, which is MPI's; nobody, where a run is on one machine",
        "burn-dist-launch/tests/listening.rs",
        "processes_of_a_run_on_this_machine_are_open_to_no_other",
    ),
    (
        "burn-dist-launch/src/rendezvous/server.rs",
        "who has the token",
        "burn-dist-launch/src/rendezvous/tests.rs",
        "a_wrong_token_is_refused_and_reported_to_who_waits",
    ),
    (
        "burn-dist-launch/src/run/start.rs",
        "processes of this user: the socket is in a folder that nobody else can enter",
        "burn-dist-launch/src/folder.rs",
        "a_folder_is_its_users_and_goes_with_its_value",
    ),
    (
        "burn-dist-launch/src/tcp.rs",
        "who has the token",
        "burn-dist-launch/src/tcp/tests.rs",
        "only_who_knows_the_token_and_the_run_has_a_line",
    ),
];

#[test]
fn every_place_that_others_reach_turns_strangers_away() {
    let mut found = BTreeMap::new();
    for package in packages() {
        for (path, code) in sources(&package.join("src")) {
            let path = path.strip_prefix(workspace()).expect("of the workspace");
            if num_listeners(&code) > 0 {
                found.insert(path.display().to_string(), num_listeners(&code));
            }
        }
    }
    let mut wrong = Vec::new();
    for (path, num) in &found {
        match LISTENERS.iter().any(|(file, ..)| file == path) {
            true if *num > 1 => wrong.push(format!("{path} listens at {num} places: one a file")),
            true => {}
            false => wrong.push(format!(
                "{path} listens: say in LISTENERS who may speak there, and which test turns everyone else away"
            )),
        }
    }
    for (file, _, test_file, test) in LISTENERS {
        if !found.contains_key(file) {
            wrong.push(format!("{file} does not listen: take it off LISTENERS"));
        }
        if !read(&workspace().join(test_file)).contains(&format!("fn {test}()")) {
            wrong.push(format!(
                "{test_file} has no test {test}, which is that of {file}"
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn planted_listeners_are_counted() {
    assert_eq!(num_listeners("let a = TcpStream::connect(b);"), 0);
    assert_eq!(num_listeners("std::net::TcpListener::bind(a)"), 1);
    let both = "UnixListener::bind_addr(&a); UdpSocket::bind(b)";
    assert_eq!(num_listeners(both), 2);
}

fn num_listeners(code: &str) -> usize {
    let listens = LISTENS.iter();
    listens.map(|name| code.matches(name).count()).sum()
}
