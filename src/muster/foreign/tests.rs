//! Tests of stores of both dialects, of the clients that ask them, and of the names of other programs.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream as Blocking};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use super::*;
use linux::sys::{PollFd, PollFlags, poll};

const GETNUMKEYS: u8 = 6;

const DIALECTS: [Dialect; 2] = [Dialect::Bare, Dialect::Validated];

type Values = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;

/// Allocations by which a message in the wrong dialect would have harmed a store.
type Harm = Arc<Mutex<Vec<String>>>;

/// A fake of torch's store since 2.1, on a port of its own, as far as ranklaunch uses the protocol.
pub(crate) async fn store() -> (u16, Values) {
    let (port, values, _) = serving(Dialect::Validated);
    (port, values)
}

/// A store that works like TCPStoreMasterDaemon: a single thread polls all connections, and reads each query to its end
/// before it looks at another connection.
fn serving(dialect: Dialect) -> (u16, Values, Harm) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (values, harm) = (Values::default(), Harm::default());
    let (shared, harmed) = (Arc::clone(&values), Arc::clone(&harm));
    std::thread::spawn(move || {
        // The bool is set while the client's first query has not come yet.
        let mut clients: VecDeque<(Blocking, bool)> = VecDeque::new();
        loop {
            let ready: Vec<bool> = {
                let all = [listener.as_fd()].into_iter().chain(clients.iter().map(|c| c.0.as_fd()));
                let mut fds: Vec<PollFd<'_>> =
                    all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
                poll(&mut fds, None).expect("polled");
                fds.iter().map(|fd| !fd.revents().is_empty()).collect()
            };
            for is_ready in ready.iter().skip(1) {
                let Some((mut stream, is_new)) = clients.pop_front() else { break };
                let held =
                    !is_ready || query(&mut stream, dialect, is_new, &shared, &harmed).is_some();
                if held {
                    clients.push_back((stream, is_new && !is_ready));
                }
            }
            if ready.first() == Some(&true) {
                let (stream, _) = listener.accept().expect("accepted");
                clients.push_back((stream, true));
            }
        }
    });
    (port, values, harm)
}

fn bytes<const N: usize>(stream: &mut Blocking) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).ok().map(|()| bytes)
}

/// Like recvString and recvVector: reads eight bytes of length, and allocates all of that before the first byte.
fn counted_bytes(stream: &mut Blocking, harm: &Harm) -> Option<Vec<u8>> {
    let length = usize::from_ne_bytes(bytes(stream)?);
    // The allocation fails with an exception, and the connection is closed.
    if isize::try_from(length).is_err() {
        return None;
    }
    if length > 1 << 20 {
        harm.lock().expect("a lock").push(format!("{length} bytes were to be allocated"));
        return None;
    }
    let mut value = vec![0; length];
    stream.read_exact(&mut value).ok().map(|()| value)
}

/// Serves one query; None: the connection is closed.
fn query(
    stream: &mut Blocking,
    dialect: Dialect,
    is_first: bool,
    values: &Values,
    harm: &Harm,
) -> Option<()> {
    let [mut number] = bytes(stream)?;
    if dialect == Dialect::Validated {
        if is_first {
            return (number == 0 && bytes::<4>(stream)? == GREETING[1..]).then_some(());
        }
        number = number.checked_sub(1)?;
    }
    match number {
        // SET has no answer.
        0 => {
            let (place, value) = (counted_bytes(stream, harm)?, counted_bytes(stream, harm)?);
            values.lock().expect("a lock").insert(place, value);
            Some(())
        }
        GETNUMKEYS => {
            let count = values.lock().expect("a lock").len() as u64;
            stream.write_all(&count.to_ne_bytes()).ok()
        }
        COMPARE_SET => {
            let place = counted_bytes(stream, harm)?;
            let (old, new) = (counted_bytes(stream, harm)?, counted_bytes(stream, harm)?);
            let mut values = values.lock().expect("a lock");
            let answer = match values.get_mut(&place) {
                None if old.is_empty() => values.entry(place).or_insert(new).clone(),
                None => old,
                Some(is) if *is == old => {
                    *is = new;
                    is.clone()
                }
                Some(is) => is.clone(),
            };
            stream.write_all(&counted(&answer)).ok()
        }
        CHECK => {
            let count = u64::from_ne_bytes(bytes(stream)?);
            let mut all = true;
            for _ in 0..count {
                let place = counted_bytes(stream, harm)?;
                all &= values.lock().expect("a lock").contains_key(&place);
            }
            stream.write_all(&[if all { READY } else { NOT_READY }]).ok()
        }
        _ => None,
    }
}

#[tokio::test]
async fn store_of_either_dialect_names_its_owner_unharmed() {
    for dialect in DIALECTS {
        let (port, values, harm) = serving(dialect);
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        assert_eq!(Dialect::at(peer).await.expect("connected"), Some(dialect));
        assert_eq!(ask(peer, 1).await, StoreAnswer::Unmarked { taken: false }, "{dialect:?}");
        assert!(values.lock().expect("a lock").is_empty(), "nothing is left in a strange one");
        for place in places_of_node(1) {
            values.lock().expect("a lock").insert(place.clone(), b"x".to_vec());
            assert_eq!(ask(peer, 1).await, StoreAnswer::Unmarked { taken: true }, "{dialect:?}");
            assert_eq!(ask(peer, 2).await, StoreAnswer::Unmarked { taken: false }, "{dialect:?}");
            values.lock().expect("a lock").remove(&place);
        }
        let key = JobKey { job: Some("7".to_owned()), port, nnodes: 2 };
        let own = StoreMark { port, key: key.clone() };
        let marking = tokio::spawn(async move { mark(&own).await });
        while ask(peer, 1).await != StoreAnswer::Marked(key.clone()) {
            assert!(!marking.is_finished(), "it gave up on a store: {dialect:?}");
            tokio::task::yield_now().await;
        }
        marking.abort();
        // Any other value is not a job key.
        values.lock().expect("a lock").insert(PLACE.to_vec(), b"another's".to_vec());
        assert_eq!(ask(peer, 1).await, StoreAnswer::No, "{dialect:?}");
        assert_eq!(*harm.lock().expect("a lock"), Vec::<String>::new(), "{dialect:?}");
    }
}

/// The control of the test above: a client of torch 2.1 at a store of torch 2.0.
#[test]
fn greeting_harms_a_store_of_torch_2_0() {
    let (port, _, harm) = serving(Dialect::Bare);
    let mut stream = Blocking::connect(("127.0.0.1", port)).expect("connected");
    stream.write_all(&[&GREETING[..], &[2], &counted(PLACE)].concat()).expect("sent");
    assert!(!matches!(stream.read(&mut [0]), Ok(1..)), "it hangs up");
    let harm = harm.lock().expect("a lock").concat();
    assert!(harm.starts_with("15") && harm.len() > "15000000000000".len(), "{harm}");
}

#[tokio::test]
async fn store_clients_are_distinguished_from_asking_nodes() {
    let zero = 0u64.to_ne_bytes();
    let count = |number: u8, key: &[u8]| [&[number][..], &counted(key)].concat();
    let greeted = |rest: &[u8]| [&GREETING[..], rest].concat();
    let ours: Vec<Vec<u8>> = DIALECTS
        .map(|dialect| compare_set(dialect, b"0123456789abcdef", b""))
        .into_iter()
        .chain([greeted(b"\x0Drkl?"), WHICH.to_vec()])
        .collect();
    let torch = [
        // Clients of torch 2.0: a static rendezvous, and a c10d rendezvous.
        [count(3, b"init/"), 1u64.to_ne_bytes().to_vec()].concat(),
        [count(1, b"/torch.rendezvous.job"), zero.to_vec()].concat(),
        // Clients of torch 2.1, and with the ping of 2.4.
        greeted(&count(4, b"init/")),
        greeted(b"\x0D\x01\x02\x03\x04"),
        greeted(b""),
    ];
    let others = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        count(1, b"/another.key"),
        count(0, b"init/"),
        b"\x01\x0e\0\0\0".to_vec(),
        b"\x01\x0e\0\0\0\0\0\0\x01ranklaunch/job".to_vec(),
    ];
    let rows = ours
        .iter()
        .map(|bytes| (bytes, Some(Client::Asking)))
        .chain(torch.iter().map(|bytes| (bytes, Some(Client::Torch))))
        .chain(others.iter().map(|bytes| (bytes, None)));
    for (bytes, who) in rows {
        let (mut theirs, mut stream) = tokio::io::duplex(256);
        theirs.write_all(bytes).await.expect("sent");
        let mut first = [0; FIRST];
        stream.read_exact(&mut first).await.expect("five bytes");
        assert_eq!(client(first, &mut stream).await, who, "{bytes:?}");
    }
}

#[test]
fn program_is_identified_by_its_first_bytes() {
    let rows: [(&[u8], Option<&str>); 7] = [
        (
            b"HTTP/1.0 501 No\r\nserver: Simple/0.6 \x1b[31m\xffx\r\n\r\n",
            Some("an HTTP server (Simple/0.6 [31mx)"),
        ),
        (b"HTTP/1.1 400 Bad Request\r\n\r\nServer: body", Some("an HTTP server")),
        (b"HTTP/1.1 400 Bad Request\r\n", Some("an HTTP server")),
        (b"SSH-2.0-OpenSSH_9.6\r\n", Some("an SSH server")),
        (b"\x15\x03\x01\x00\x02\x02\x46", Some("a TLS server")),
        (b"rkl/mu\x03\x00\x01", None),
        (b"", None),
    ];
    for (answer, name) in rows {
        assert_eq!(program(answer).map(|name| name.en.into_owned()).as_deref(), name);
    }
}
