----------------------------- MODULE RelaxedRead -----------------------------
(* Contents of a read through the window of one server (BUC-Raft, algorithm for keys in an LSM     *)
(* tree): entries committed and not applied are laid over a view of the engine. A scan for `n`     *)
(* pairs with deletes in the window has two ways: fetch more pairs from the view at once, or wait  *)
(* until the engine holds all entries that concern the scan. Both return the same state.           *)
(*                                                                                                 *)
(* The log holds committed entries only; each is answered. CommitReturn.tla has the protocol that  *)
(* makes it so. Keys are numbers. The value of a put is its index, and that of a pair from before  *)
(* the log is 0.                                                                                   *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    None, Deleted,
    MaxKey, MaxLog,
    MaxPairs,   \* pairs that a scan returns, at most
    Bugs

Bug(name) == name \in Bugs
MaxOf(S) == CHOOSE x \in S : \A y \in S : y <= x
MinOf(S) == CHOOSE x \in S : \A y \in S : x <= y

Keys == 1..MaxKey

(* Operations: a put or a delete of one key, or a delete of a range. *)
Operations ==
    [put : BOOLEAN, first : Keys, last : Keys]
IsOperation(op) == op.first <= op.last /\ (op.put => op.first = op.last)

VARIABLES
    base,       \* keys with a pair before the log
    log, applied,
    read,       \* read in progress: window (`a`, `r`]
    wrong       \* invariants that a finished read violated

vars == <<base, log, applied, read, wrong>>

Init ==
    /\ base \in SUBSET Keys
    /\ log = <<>>
    /\ applied = 0
    /\ read = None
    /\ wrong = {}

-----------------------------------------------------------------------------
(* Contents: key -> value, or `Deleted`. *)

Concerns(op, key) == op.first <= key /\ key <= op.last

(* The last entry in (from, upto] that concerns a key; 0 for none. *)
Last(key, from, upto) ==
    LET hits == {i \in (from + 1)..upto : Concerns(log[i], key)}
    IN  IF hits = {} THEN 0 ELSE MaxOf(hits)

Effect(i) == IF log[i].put THEN i ELSE Deleted

(* Entries (from, upto] laid over a state. *)
Laid(from, upto, state) ==
    [key \in Keys |-> LET i == Last(key, from, upto) IN IF i = 0 THEN state[key] ELSE Effect(i)]

State(i) == Laid(0, i, [key \in Keys |-> IF key \in base THEN 0 ELSE Deleted])

Live(state, start) == {key \in Keys : key >= start /\ state[key] # Deleted}

(* The first `n` live keys from `start`. *)
FirstKeys(state, start, n) ==
    {key \in Live(state, start) : Cardinality({k \in Live(state, start) : k < key}) < n}

(* A result is the set of its pairs. *)
Pairs(state, keys) == {<<key, state[key]>> : key \in keys}
Scan(state, start, n) == Pairs(state, FirstKeys(state, start, n))

-----------------------------------------------------------------------------
(* The server *)

(* An entry is committed, published in the window, and answered. *)
Commit(op) ==
    /\ Len(log) < MaxLog
    /\ IsOperation(op)
    /\ log' = Append(log, op)
    /\ UNCHANGED <<base, applied, read, wrong>>

Apply ==
    /\ applied < Len(log)
    /\ applied' = applied + 1
    /\ UNCHANGED <<base, log, read, wrong>>

-----------------------------------------------------------------------------
(* Reads *)

Begin ==
    /\ read = None
    /\ read' = [a |-> applied, r |-> Len(log)]
    /\ UNCHANGED <<base, log, applied, wrong>>

(* `Of(i)` is the right result in the state after entry i. *)
Finish(got, Of(_)) ==
    LET states == {i \in 0..Len(log) : Of(i) = got} IN
    /\ wrong' = wrong
            \cup (IF states = {} THEN {"torn"} ELSE {})
            \cup (IF states # {} /\ \A i \in states : i < read.r THEN {"stale"} ELSE {})
            \cup (IF applied <= read.r /\ got # Of(read.r) THEN {"differs"} ELSE {})
    /\ read' = None

(* The window may be laid over a view only if the view is within it (see CommitReturn.tla). *)
IsViewInWindow == read # None /\ applied <= read.r
Window == (read.a + 1)..read.r

(* Get: the last entry of the window that concerns the key, or the view. *)
Get(key) ==
    /\ IsViewInWindow
    /\ LET i == Last(key, read.a, read.r)
           Value(value) == IF value = Deleted THEN {} ELSE {<<key, value>>}
           logged == IF Bug("value_of_delete") THEN {<<key, i>>} ELSE Value(Effect(i))
           got == IF i = 0 THEN Value(State(applied)[key]) ELSE logged
           Of(at) == Value(State(at)[key])
       IN  Finish(got, Of)
    /\ UNCHANGED <<base, log, applied>>

(* Deletes of the window that may remove pairs of a scan: each removes one of the pairs fetched. *)
Deletes(start) ==
    {key \in Keys : key >= start
        /\ LET i == Last(key, read.a, read.r) IN i # 0 /\ Effect(i) = Deleted}
(* A delete of a range may remove any number of pairs. *)
IsRangeDeleted(start) ==
    \E i \in Window : log[i].first < log[i].last /\ log[i].last >= start

(* Immediate: fetches n + k pairs for k deletes, and lays the window over them. *)
Immediate(start, n) ==
    /\ IsViewInWindow
    /\ ~IsRangeDeleted(start) \/ Bug("range_delete_counts_once")
    /\ LET ranges == {i \in Window : log[i].first < log[i].last /\ log[i].last >= start}
           more == CASE Bug("scan_fetches_n") -> 0
                     [] Bug("range_delete_counts_once") /\ ranges # {} -> Cardinality(ranges)
                     [] OTHER -> Cardinality(Deletes(start))
           view == State(applied)
           fetched == FirstKeys(view, start, n + more)
           part == [key \in Keys |-> IF key \in fetched THEN view[key] ELSE Deleted]
           Of(at) == Scan(State(at), start, n)
       IN  Finish(Scan(Laid(read.a, read.r, part), start, n), Of)
    /\ UNCHANGED <<base, log, applied>>

(* Relaxed: waits until the last entry is applied that concerns the scan, and reads a view alone.  *)
(* The view may be newer than the window.                                                          *)
Relaxed(start, n) ==
    /\ read # None
    /\ LET related == {i \in Window : log[i].last >= start
                            /\ (~log[i].put \/ ~Bug("wait_for_deletes_alone"))}
           view == State(applied)
           seen == IF Bug("window_over_newer_view") THEN Laid(read.a, read.r, view) ELSE view
           Of(at) == Scan(State(at), start, n)
       IN
        /\ \A i \in related : i <= applied
        /\ Finish(Scan(seen, start, n), Of)
    /\ UNCHANGED <<base, log, applied>>

Next ==
    \/ \E op \in Operations : Commit(op)
    \/ Apply
    \/ Begin
    \/ \E key \in Keys : Get(key)
    \/ \E start \in Keys, n \in 1..MaxPairs : Immediate(start, n) \/ Relaxed(start, n)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Invariants *)

(* A read returns every write that was answered before it began. *)
ReadsSeeAnswered == "stale" \notin wrong
(* It returns the state after one committed entry. *)
ReadsExact == "torn" \notin wrong
(* Both ways of a scan return the state at the end of the window, if the view is not newer. *)
WaysAgree == "differs" \notin wrong

=============================================================================
