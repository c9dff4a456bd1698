---------------------------- MODULE CommitReturn ----------------------------
(* Time of a write's answer and permitted results of a read: commit return, durability of each     *)
(* server, the window of entries committed and not applied, leases on drifting clocks, read index, *)
(* follower reads, administration.                                                                 *)
(*                                                                                                 *)
(* Each entry of the log is a write, so that the state after entry i is named i, and a read        *)
(* returns an index. An entry is the term in which it was proposed; an administrative one is the   *)
(* negative of the term. The last administrative entry moves the range to another region.          *)
(*                                                                                                 *)
(* The log of a server is in memory, and the first `persisted` entries are durable. A crash cuts   *)
(* the log to them. If a conflict replaced durable entries and the new ones are not durable, the   *)
(* disk may return the old ones: that is the state of a server without the conflict's message.     *)
(* KvsRaft.tla has the files.                                                                      *)
(*                                                                                                 *)
(* Clocks are not numbers but the distances to the slowest; promises with a time limit count down. *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Servers, None,
    MaxTerm, MaxLog, MaxCrashes,
    MaxRounds,      \* heartbeat rounds of one term, at most
    MaxTransfers,
    ElectionTicks,  \* vote hold after a message of a leader, on the follower's clock
    Drift,          \* distance of two clocks, at most: over any time they differ by twice that
    CommitReturn,   \* whether a write is answered when committed; otherwise when applied
    Windows,        \* whether reads see entries committed and not applied
    Steps,          \* whether windows are published in steps of their own; otherwise at once
    Disks,          \* whether entries become durable in a step of its own; otherwise at once
    Writes,         \* whether clients write; a leader's first entry counts as a write too
    Admins,         \* whether an administrative entry may be proposed
    Kinds,          \* of reads: "lease", "index"
    Led,            \* whether the first leader leads from the start
    Bugs

ASSUME (Steps => Windows /\ CommitReturn) /\ (Admins => Steps)

Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b
MaxOf(S) == CHOOSE x \in S : \A y \in S : y <= x
MinOf(S) == CHOOSE x \in S : \A y \in S : x <= y
Bug(name) == name \in Bugs
Quorums == {Q \in SUBSET Servers : 2 * Cardinality(Q) > Cardinality(Servers)}
LeaseTicks == IF Bug("lease_without_drift") THEN ElectionTicks ELSE ElectionTicks - 2 * Drift
TermOf(entry) == IF entry < 0 THEN -entry ELSE entry
IsAdmin(entry) == entry < 0

Symmetry == Permutations(Servers)

VARIABLES
    term, vote, role, votes,    \* votes: those of the candidates
    log, persisted, commit, applied,
    window,     \* published for reads: applied `a`, committed `r`, and whether nothing beyond `r`
                \* is committed
    moved,      \* whether the version is published that the administrative entry starts
    ahead,      \* distance of each clock to the slowest
    hold,       \* ticks of the vote hold
    lease,      \* ticks of a leader's lease
    transferred, \* whether a leader offered a leadership transfer in its term
    round,      \* a leader's last round: its number, and its age in ticks
    lead,       \* term -> longest log and highest commit index of its leader
    acked,      \* server -> term -> last entry it acknowledged
    beats,      \* rounds sent
    answers,    \* answers to rounds
    offers,     \* terms in which leadership was offered, and the target
    chosen,     \* committed entries
    answered,   \* last write with an answer to the client
    elsewhere,  \* whether the region that owns the range afterwards answered a write
    shown,      \* last state that a finished read returned
    read,       \* read in progress
    wrong,      \* invariants that an answer violated
    crashes, transfers

raft == <<term, vote, role, votes, log, persisted, commit, applied>>
published == <<window, moved>>
leases == <<ahead, hold, lease, transferred, round>>
network == <<lead, acked, beats, answers, offers>>
clients == <<chosen, answered, elsewhere, shown, read, wrong>>
counts == <<crashes, transfers>>
vars == <<raft, published, leases, network, clients, counts>>

NoRound == [n |-> 0, age |-> 0]
NoWindow == [a |-> 0, r |-> 0, whole |-> TRUE]

(* `first` leads term 1 from the start, and all servers have applied its first entry. *)
InitialTerm(first) ==
    LET one == IF first = None THEN 0 ELSE 1
        noop == IF first = None THEN <<>> ELSE <<1>>
    IN
    /\ term = [s \in Servers |-> one]
    /\ vote = [s \in Servers |-> first]
    /\ role = [s \in Servers |-> IF s = first THEN "leader" ELSE "follower"]
    /\ log = [s \in Servers |-> noop]
    /\ persisted = [s \in Servers |-> one]
    /\ commit = [s \in Servers |-> one]
    /\ applied = [s \in Servers |-> one]
    /\ window = [s \in Servers |->
            IF Steps THEN [a |-> one, r |-> one, whole |-> TRUE] ELSE NoWindow]
    /\ lead = [t \in 1..MaxTerm |->
            IF t = one THEN [by |-> first, e |-> noop, commit |-> one]
            ELSE [by |-> None, e |-> <<>>, commit |-> 0]]
    /\ acked = [s \in Servers |-> [t \in 1..MaxTerm |-> IF t = one THEN one ELSE 0]]
    /\ chosen = noop
    /\ answered = one

Init ==
    /\ IF Led THEN \E first \in Servers : InitialTerm(first) ELSE InitialTerm(None)
    /\ votes = [s \in Servers |-> {}]
    /\ moved = [s \in Servers |-> FALSE]
    /\ ahead = [s \in Servers |-> 0]
    /\ hold = [s \in Servers |-> 0]
    /\ lease = [s \in Servers |-> 0]
    /\ transferred = [s \in Servers |-> FALSE]
    /\ round = [s \in Servers |-> NoRound]
    /\ beats = {}
    /\ answers = {}
    /\ offers = {}
    /\ elsewhere = FALSE
    /\ shown = 0
    /\ read = None
    /\ wrong = {}
    /\ crashes = 0
    /\ transfers = 0

-----------------------------------------------------------------------------
(* Time: no clock gets further ahead of another than the drift allows. *)

Down(n) == IF n = 0 THEN 0 ELSE n - 1

Tick(s) ==
    LET moved_on == [ahead EXCEPT ![s] = @ + 1]
        least == MinOf({moved_on[o] : o \in Servers})
    IN
    /\ ahead' = [o \in Servers |-> moved_on[o] - least]
    /\ \A o \in Servers : ahead'[o] <= Drift
    /\ hold' = [hold EXCEPT ![s] = Down(@)]
    /\ lease' = [lease EXCEPT ![s] = Down(@)]
    /\ round' = [round EXCEPT ![s].age = IF round[s].n = 0 THEN 0 ELSE Min(@ + 1, LeaseTicks)]
    /\ UNCHANGED <<raft, published, transferred, network, clients, counts>>

-----------------------------------------------------------------------------
(* Windows. Unless they are published in steps, a window is always that of the moment. *)

(* Last entry that a window may reach. It ends before an administrative entry that is not applied, *)
(* or at that entry once its version is published: then no read uses the window.                   *)
Reach(s) ==
    LET barriers == {i \in (applied[s] + 1)..commit[s] : IsAdmin(log[s][i])}
    IN  IF barriers = {} \/ Bug("window_over_admin") THEN commit[s]
        ELSE IF moved[s] THEN MinOf(barriers) ELSE MinOf(barriers) - 1

Window(s) ==
    IF Steps THEN window[s] ELSE [a |-> applied[s], r |-> commit[s], whole |-> TRUE]

(* A leader serves once an entry of its own term is committed, or, without windows, applied: it    *)
(* then knows all that earlier terms committed. Applied entries are in the window, so that a       *)
(* leader may also wait for the apply.                                                             *)
Serves(s) ==
    /\ role[s] = "leader"
    /\ LET known == IF Windows THEN Window(s).r ELSE applied[s] IN
        known > 0 /\ TermOf(log[s][known]) = term[s]

-----------------------------------------------------------------------------
(* Answers to writes *)

(* Terms of the entries that this server proposed at this index. It may have lost its leadership   *)
(* since, and another entry may have replaced such an entry.                                       *)
Proposed(s, i) ==
    {t \in 1..MaxTerm : lead[t].by = s /\ i <= Len(lead[t].e) /\ TermOf(lead[t].e[i]) = t}

(* With commit return a server answers its proposals up to `upto` when it has published that they  *)
(* are committed: those that its log `l` holds with their term, and that are not administrative. A *)
(* leader counts the entries of earlier terms as answered, too. `all` are the committed entries.   *)
Answers(s, l, all, from, upto) ==
    LET new == {i \in (from + 1)..upto : CommitReturn /\ (IsAdmin(l[i]) => Bug("admin_at_commit"))}
        done(i) == {t \in Proposed(s, i) : t = TermOf(l[i]) \/ Bug("answer_by_index")}
        due == {i \in new : role[s] = "leader" \/ done(i) # {}}
        lost == {i \in new : done(i) \ {TermOf(all[i])} # {}}
        early == {i \in due : IsAdmin(l[i]) /\ applied[s] < i}
    IN
    /\ answered' = IF due = {} THEN answered ELSE Max(answered, MaxOf(due))
    /\ wrong' = wrong
            \cup (IF lost = {} THEN {} ELSE {"lost"})
            \cup (IF early = {} THEN {} ELSE {"early"})

-----------------------------------------------------------------------------
(* Raft *)

LastTerm(l) == IF l = <<>> THEN 0 ELSE TermOf(l[Len(l)])
IsUpToDate(a, b) == LastTerm(a) > LastTerm(b) \/ (LastTerm(a) = LastTerm(b) /\ Len(a) >= Len(b))

StepDown(s) ==
    /\ lease' = [lease EXCEPT ![s] = 0]
    /\ transferred' = [transferred EXCEPT ![s] = FALSE]
    /\ round' = [round EXCEPT ![s] = NoRound]

IsOffered(s) == <<term[s], s>> \in offers

(* A server that was offered the leadership campaigns in spite of promises; others after their own *)
(* promise to the leader has ended. Its entries are durable before.                                *)
Campaign(s) ==
    /\ role[s] # "leader"
    /\ term[s] < MaxTerm
    /\ hold[s] = 0 \/ IsOffered(s)
    /\ persisted[s] = Len(log[s])
    /\ term' = [term EXCEPT ![s] = @ + 1]
    /\ vote' = [vote EXCEPT ![s] = s]
    /\ role' = [role EXCEPT ![s] = "candidate"]
    /\ votes' = [votes EXCEPT ![s] = {s}]
    /\ StepDown(s)
    /\ UNCHANGED <<log, persisted, commit, applied, published, ahead, hold, network, clients, counts>>

GrantVote(s, c) ==
    /\ s # c
    /\ role[c] = "candidate"
    /\ term[s] < term[c] \/ (term[s] = term[c] /\ vote[s] = None /\ role[s] = "follower")
    /\ hold[s] = 0 \/ <<term[c] - 1, c>> \in offers
    /\ IsUpToDate(log[c], log[s])
    /\ term' = [term EXCEPT ![s] = term[c]]
    /\ vote' = [vote EXCEPT ![s] = c]
    /\ role' = [role EXCEPT ![s] = "follower"]
    /\ votes' = [votes EXCEPT ![c] = @ \cup {s}, ![s] = {}]
    /\ StepDown(s)
    /\ UNCHANGED <<log, persisted, commit, applied, published, ahead, hold, network, clients, counts>>

(* Appends to a leader's log. Its disk may be slower than those of a quorum: its own entry counts  *)
(* only once it is durable.                                                                        *)
Extend(s, entry) ==
    /\ Len(log[s]) < MaxLog
    /\ log' = [log EXCEPT ![s] = Append(@, entry)]
    /\ persisted' = [persisted EXCEPT ![s] = IF Disks THEN @ ELSE Len(log'[s])]
    /\ acked' = [acked EXCEPT ![s][term[s]] =
            IF Bug("count_unsynced") THEN Len(log'[s]) ELSE persisted'[s]]

Lead(s) ==
    /\ role[s] = "candidate"
    /\ votes[s] \in Quorums
    /\ Extend(s, term[s])
    /\ role' = [role EXCEPT ![s] = "leader"]
    /\ votes' = [votes EXCEPT ![s] = {}]
    /\ lead' = [lead EXCEPT ![term[s]] = [by |-> s, e |-> log'[s], commit |-> commit[s]]]
    /\ UNCHANGED <<term, vote, commit, applied, published, leases, beats, answers, offers, clients,
                   counts>>

Write(s) ==
    /\ Writes
    /\ Serves(s)
    /\ Extend(s, term[s])
    /\ lead' = [lead EXCEPT ![term[s]].e = log'[s]]
    /\ UNCHANGED <<term, vote, role, votes, commit, applied, published, leases, beats, answers, offers,
                   clients, counts>>

Administer(s) ==
    /\ Admins
    /\ Serves(s)
    /\ \A i \in 1..Len(log[s]) : ~IsAdmin(log[s][i])
    /\ Extend(s, -term[s])
    /\ lead' = [lead EXCEPT ![term[s]].e = log'[s]]
    /\ UNCHANGED <<term, vote, role, votes, commit, applied, published, leases, beats, answers, offers,
                   clients, counts>>

RECURSIVE Agreed(_, _, _)
Agreed(a, b, i) ==
    IF i < Len(a) /\ i < Len(b) /\ a[i + 1] = b[i + 1] THEN Agreed(a, b, i + 1) ELSE i

(* Receives entries of the leader of term t, or its commit index: the server heard from a leader.  *)
(* It acknowledges what is durable; `Sync` acknowledges the rest.                                  *)
Receive(s, t, upto, learns) ==
    /\ lead[t].by # None /\ lead[t].by # s
    /\ t >= term[s]
    /\ LET all == lead[t].e
           same == Agreed(log[s], all, 0)
           learned == IF learns THEN Max(commit[s], Min(lead[t].commit, upto)) ELSE commit[s]
       IN
        /\ upto <= Len(all) /\ upto >= same
        /\ log' = [log EXCEPT ![s] = IF upto > same THEN SubSeq(all, 1, upto) ELSE @]
        /\ persisted' = [persisted EXCEPT ![s] =
                IF ~Disks THEN Len(log'[s]) ELSE IF upto > same THEN Min(@, same) ELSE @]
        /\ acked' = [acked EXCEPT ![s][t] = Max(@, Min(upto, persisted'[s]))]
        \* A message without changes is left out: it only renews the promise, as a heartbeat does.
        /\ upto > same \/ acked' # acked \/ learned > commit[s]
        /\ commit' = [commit EXCEPT ![s] = learned]
        /\ IF Steps THEN UNCHANGED <<answered, wrong>>
           ELSE Answers(s, log'[s], chosen, commit[s], learned)
    /\ term' = [term EXCEPT ![s] = t]
    /\ vote' = [vote EXCEPT ![s] = IF t > term[s] THEN None ELSE @]
    /\ role' = [role EXCEPT ![s] = "follower"]
    /\ votes' = [votes EXCEPT ![s] = {}]
    /\ hold' = [hold EXCEPT ![s] = ElectionTicks]
    /\ StepDown(s)
    /\ UNCHANGED <<applied, published, ahead, lead, beats, answers, offers, chosen, elsewhere, shown,
                   read, counts>>

(* All entries of the log become durable. The server acknowledges those that are the leader's. *)
Sync(s) ==
    /\ persisted[s] < Len(log[s])
    /\ persisted' = [persisted EXCEPT ![s] = Len(log[s])]
    /\ acked' = IF term[s] = 0 \/ lead[term[s]].by = None THEN acked
                ELSE [acked EXCEPT ![s][term[s]] = Max(@, Agreed(log[s], lead[term[s]].e, 0))]
    /\ UNCHANGED <<term, vote, role, votes, log, commit, applied, published, leases, lead, beats,
                   answers, offers, clients, counts>>

(* Any quorum commits: the leader's disk need not be in it. Followers learn the commit index after *)
(* the leader's window reaches it: they may show it at once.                                       *)
Commit(s) ==
    /\ role[s] = "leader"
    /\ LET ready == {i \in (commit[s] + 1)..Len(log[s]) :
                {v \in Servers : acked[v][term[s]] >= i} \in Quorums}
           i == MaxOf(ready)
       IN
        /\ ready # {}
        /\ TermOf(log[s][i]) = term[s]
        /\ commit' = [commit EXCEPT ![s] = i]
        /\ chosen' = IF i > Len(chosen) THEN SubSeq(log[s], 1, i) ELSE chosen
        /\ lead' = IF Steps /\ ~Bug("commit_sent_before_window") THEN lead
                   ELSE [lead EXCEPT ![term[s]].commit = i]
        /\ IF Steps /\ ~Bug("answer_before_window") THEN UNCHANGED <<answered, wrong>>
           ELSE Answers(s, log[s], chosen', commit[s], i)
    /\ UNCHANGED <<term, vote, role, votes, log, persisted, applied, published, leases, acked, beats,
                   answers, offers, elsewhere, shown, read, counts>>

(* Publishes the end of the window, then answers and tells followers. A window that ends before a  *)
(* committed entry serves only reads with a read index within it.                                  *)
PublishCommitted(s) ==
    /\ Steps
    /\ LET reach == Max(window[s].r, Reach(s))
           next == [window[s] EXCEPT !.r = reach,
                        !.whole = reach = commit[s] \/ Bug("window_before_admin")]
       IN
        /\ next # window[s] \/ (role[s] = "leader" /\ lead[term[s]].commit < commit[s])
        /\ window' = [window EXCEPT ![s] = next]
        /\ lead' = IF role[s] = "leader" THEN [lead EXCEPT ![term[s]].commit = commit[s]] ELSE lead
        /\ Answers(s, log[s], chosen, window[s].r, IF Bug("admin_at_commit") THEN commit[s] ELSE reach)
    /\ UNCHANGED <<raft, moved, leases, acked, beats, answers, offers, chosen, elsewhere, shown, read,
                   counts>>

(* Publishes the version that the next entry starts, before it is applied. *)
PublishVersion(s) ==
    /\ Admins
    /\ ~moved[s]
    /\ applied[s] < commit[s] /\ IsAdmin(log[s][applied[s] + 1])
    /\ moved' = [moved EXCEPT ![s] = TRUE]
    /\ UNCHANGED <<raft, window, leases, network, clients, counts>>

(* Only entries that are durable here and in the window are applied. A leader answers here what it *)
(* has not answered at commit: administration, and without commit return all entries of its term.  *)
Apply(s) ==
    /\ LET i == applied[s] + 1
           own == role[s] = "leader" /\ TermOf(log[s][i]) = term[s]
       IN
        /\ i <= IF Bug("window_after_apply") THEN commit[s] ELSE Window(s).r
        /\ i <= persisted[s] \/ Bug("apply_unsynced")
        /\ IsAdmin(log[s][i]) => moved[s]
        /\ applied' = [applied EXCEPT ![s] = i]
        /\ answered' = IF own THEN Max(answered, i) ELSE answered
    /\ UNCHANGED <<term, vote, role, votes, log, persisted, commit, published, leases, network, chosen,
                   elsewhere, shown, read, wrong, counts>>

(* Publishes the start of the window, after the entries before it are applied. *)
PublishApplied(s) ==
    /\ Steps
    /\ LET a == IF Bug("applied_early") THEN window[s].r ELSE applied[s] IN
        /\ a > window[s].a
        /\ window' = [window EXCEPT ![s].a = a]
    /\ UNCHANGED <<raft, moved, leases, network, clients, counts>>

(* Memory is lost, with clock and promises: no vote is granted while any granted lease may last.   *)
(* The commit index may be lost as well.                                                           *)
Crash(s) ==
    /\ crashes < MaxCrashes
    /\ crashes' = crashes + 1
    /\ role' = [role EXCEPT ![s] = "follower"]
    /\ log' = [log EXCEPT ![s] = SubSeq(@, 1, persisted[s])]
    /\ commit' = [commit EXCEPT ![s] = 0]
    /\ applied' = [applied EXCEPT ![s] = 0]
    /\ window' = [window EXCEPT ![s] = NoWindow]
    /\ moved' = [moved EXCEPT ![s] = FALSE]
    /\ votes' = [votes EXCEPT ![s] = {}]
    /\ hold' = [hold EXCEPT ![s] = IF Bug("vote_at_once") THEN 0 ELSE ElectionTicks]
    /\ read' = IF read # None /\ read.at = s THEN None ELSE read
    /\ StepDown(s)
    /\ UNCHANGED <<term, vote, persisted, ahead, network, chosen, answered, elsewhere, shown, wrong,
                   transfers>>

(* Another region owns the range once the administrative entry is applied on any server. *)
WriteElsewhere(s) ==
    /\ ~elsewhere
    /\ \E i \in 1..applied[s] : IsAdmin(log[s][i])
    /\ elsewhere' = TRUE
    /\ UNCHANGED <<raft, published, leases, network, chosen, answered, shown, read, wrong, counts>>

-----------------------------------------------------------------------------
(* Heartbeat rounds confirm leadership, and renew the lease from the time of sending. *)

Begins(s) ==
    /\ round[s].n < MaxRounds
    /\ round' = [round EXCEPT ![s] = [n |-> round[s].n + 1, age |-> 0]]
    /\ beats' = beats \cup {<<term[s], round[s].n + 1>>}

Beat(s) ==
    /\ Serves(s) \/ (role[s] = "leader" /\ Bug("lease_before_no_op"))
    /\ Begins(s)
    /\ UNCHANGED <<raft, published, ahead, hold, lease, transferred, lead, acked, answers, offers,
                   clients, counts>>

Answer(s, t, n) ==
    /\ <<t, n>> \in beats
    /\ t >= term[s]
    /\ lead[t].by # s
    /\ answers' = answers \cup {<<t, n, s>>}
    /\ term' = [term EXCEPT ![s] = t]
    /\ vote' = [vote EXCEPT ![s] = IF t > term[s] THEN None ELSE @]
    /\ role' = [role EXCEPT ![s] = "follower"]
    /\ votes' = [votes EXCEPT ![s] = {}]
    /\ hold' = [hold EXCEPT ![s] = ElectionTicks]
    /\ StepDown(s)
    /\ UNCHANGED <<log, persisted, commit, applied, published, ahead, lead, acked, beats, offers,
                   clients, counts>>

(* An answer to another round confirms nothing. *)
IsConfirmed(t, n) ==
    LET counts_for(s) == \E m \in 1..MaxRounds : <<t, m, s>> \in answers
                            /\ (m >= n \/ Bug("read_context_reused"))
    IN  {lead[t].by} \cup {s \in Servers : counts_for(s)} \in Quorums

Renew(s) ==
    /\ role[s] = "leader"
    /\ round[s].n > 0
    /\ IsConfirmed(term[s], round[s].n)
    /\ ~transferred[s] \/ Bug("lease_after_transfer")
    /\ round[s].age < LeaseTicks
    /\ lease[s] < LeaseTicks - round[s].age
    /\ lease' = [lease EXCEPT ![s] = LeaseTicks - round[s].age]
    /\ UNCHANGED <<raft, published, ahead, hold, transferred, round, network, clients, counts>>

Transfer(s, c) ==
    /\ role[s] = "leader"
    /\ s # c
    /\ transfers < MaxTransfers
    /\ transfers' = transfers + 1
    /\ offers' = offers \cup {<<term[s], c>>}
    /\ transferred' = [transferred EXCEPT ![s] = TRUE]
    /\ lease' = [lease EXCEPT ![s] = IF Bug("lease_after_transfer") THEN @ ELSE 0]
    /\ UNCHANGED <<raft, published, ahead, hold, round, lead, acked, beats, answers, clients, crashes>>

-----------------------------------------------------------------------------
(* Reads. `floor` is the last state that was answered or shown before the read began. *)

IsOverlaid == Windows /\ ~Bug("commit_return_without_overlay")

(* Result of window w laid over a view of the state after entry v. Keys of the window's entries    *)
(* have the state after its end, all others the one of the view. Both are one state only if the    *)
(* view is within the window.                                                                      *)
Result(w, v) ==
    IF ~IsOverlaid \/ w.a = w.r THEN [got |-> v, exact |-> TRUE]
    ELSE [got |-> w.r, exact |-> w.a <= v /\ v <= w.r]

IsChosen(l, i) == i <= Len(chosen) /\ SubSeq(l, 1, i) = SubSeq(chosen, 1, i)

Finish(s, result, floor) ==
    LET got == result.got IN
    /\ shown' = Max(shown, got)
    /\ wrong' = wrong
            \cup (IF got < floor.answered \/ floor.elsewhere THEN {"stale"} ELSE {})
            \cup (IF got < floor.shown THEN {"backwards"} ELSE {})
            \cup (IF IsChosen(log[s], got) THEN {} ELSE {"uncommitted"})
            \cup (IF result.exact THEN {} ELSE {"torn"})
    /\ read' = None
    /\ UNCHANGED <<chosen, answered, elsewhere>>

Floor == [answered |-> answered, shown |-> shown, elsewhere |-> elsewhere]

(* A read in progress: on server `at`, with a lease or a round of `term`; read index `got`, round  *)
(* `n`, window `w` and view `v`, as far as they are known.                                         *)
Begin(kind, s) ==
    [kind |-> kind, at |-> s, term |-> 0, floor |-> Floor, got |-> 0, n |-> 0, w |-> None, v |-> None]

(* The read must see what a follower may have shown and what another region may have answered: all *)
(* that is committed must be in the window, or else applied.                                       *)
IsCurrent(s) ==
    IF Windows THEN Window(s).whole ELSE applied[s] = commit[s] \/ Bug("lease_ahead_of_apply")

IsLeased(s, t) ==
    role[s] = "leader" /\ term[s] = t /\ lease[s] > 0 /\ IsCurrent(s) /\ ~moved[s]

(* On a request thread: find lease and window, take a view, check that the lease and the end of    *)
(* the window are still the same. Its start may have moved: entries that are applied already       *)
(* change nothing when they are laid over the view once more.                                      *)
LeaseFind(s) ==
    /\ "lease" \in Kinds
    /\ read = None
    /\ Serves(s) \/ Bug("lease_before_no_op")
    /\ IsLeased(s, term[s])
    /\ read' = [Begin("leased", s) EXCEPT !.term = term[s], !.w = IF Steps THEN window[s] ELSE None]
    /\ UNCHANGED <<raft, published, leases, network, chosen, answered, elsewhere, shown, wrong, counts>>

TakeView(s) ==
    /\ Steps
    /\ read # None /\ read.kind \in {"leased", "found"} /\ read.at = s /\ read.v = None
    /\ read' = [read EXCEPT !.v = applied[s]]
    /\ UNCHANGED <<raft, published, leases, network, chosen, answered, elsewhere, shown, wrong, counts>>

(* If the window has another end, the read starts again and waits instead. *)
Check(s) ==
    /\ read # None /\ read.kind \in {"leased", "found"} /\ read.at = s
    /\ Steps => read.v # None
    /\ LET is_same == Steps => read.w.r = window[s].r \/ Bug("no_second_check")
           may == IF read.kind = "leased" THEN IsLeased(s, read.term) ELSE ~moved[s]
           result == IF Steps THEN Result(read.w, read.v) ELSE Result(Window(s), applied[s])
       IN  IF is_same /\ may THEN Finish(s, result, read.floor)
           ELSE read' = None /\ UNCHANGED <<chosen, answered, elsewhere, shown, wrong>>
    /\ UNCHANGED <<raft, published, leases, network, counts>>

(* Without a lease: a round that starts after the read, and the commit index of that moment. The   *)
(* read may wait on the leader or on a follower, and be sent to any server that believes to lead.  *)
Ask(s) ==
    /\ "index" \in Kinds
    /\ read = None
    /\ ~moved[s]
    /\ read' = [Begin("asks", s) EXCEPT !.w = IF Bug("old_window_over_view") THEN Window(s) ELSE None]
    /\ UNCHANGED <<raft, published, leases, network, chosen, answered, elsewhere, shown, wrong, counts>>

TakeIndex(l) ==
    /\ read # None /\ read.kind = "asks"
    /\ Serves(l) \/ (role[l] = "leader" /\ Bug("read_before_no_op"))
    /\ IF Bug("read_index_unconfirmed") THEN UNCHANGED <<round, beats>> ELSE Begins(l)
    /\ read' = [read EXCEPT !.kind = "waits", !.term = term[l], !.n = round'[l].n,
                    !.got = IF Bug("read_index_of_window") THEN Window(l).r ELSE commit[l]]
    /\ UNCHANGED <<raft, published, ahead, hold, lease, transferred, lead, acked, answers, offers, chosen,
                   answered, elsewhere, shown, wrong, counts>>

(* The read is served once the window reaches its index: the log holds that entry with the term in *)
(* which it is committed. It need not be applied. The steps are those of a lease, without one.     *)
Served(s) ==
    /\ read # None /\ read.kind = "waits" /\ read.at = s
    /\ Bug("read_index_unconfirmed") \/ IsConfirmed(read.term, read.n)
    /\ ~moved[s]
    /\ \/ (IF IsOverlaid THEN Window(s).r ELSE applied[s]) >= read.got
       \/ Bug("read_before_apply")
       \/ Bug("follower_by_length") /\ Len(log[s]) >= read.got
    /\ Bug("old_window_over_view") => applied[s] >= read.got
    /\ LET w == CASE Bug("old_window_over_view") -> read.w
                  [] Bug("follower_by_length") -> [Window(s) EXCEPT !.r = Max(@, read.got)]
                  [] OTHER -> Window(s)
       IN  IF Steps
           THEN /\ read' = [read EXCEPT !.kind = "found", !.term = 0, !.n = 0, !.got = 0, !.w = w]
                /\ UNCHANGED <<chosen, answered, elsewhere, shown, wrong>>
           ELSE Finish(s, Result(w, applied[s]), read.floor)
    /\ UNCHANGED <<raft, published, leases, network, counts>>

-----------------------------------------------------------------------------

Next ==
    \E s \in Servers :
        \/ Tick(s) \/ Campaign(s) \/ Lead(s) \/ Write(s) \/ Administer(s) \/ Sync(s) \/ Commit(s)
        \/ PublishCommitted(s) \/ PublishVersion(s) \/ Apply(s) \/ PublishApplied(s) \/ Crash(s)
        \/ WriteElsewhere(s) \/ Beat(s) \/ Renew(s)
        \/ LeaseFind(s) \/ TakeView(s) \/ Check(s) \/ Ask(s) \/ TakeIndex(s) \/ Served(s)
        \/ \E c \in Servers : GrantVote(s, c) \/ Transfer(s, c)
        \/ \E t \in 1..MaxTerm, upto \in 0..MaxLog, learns \in BOOLEAN : Receive(s, t, upto, learns)
        \/ \E t \in 1..MaxTerm, n \in 1..MaxRounds : Answer(s, t, n)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Invariants *)

(* Visibility: a read returns every write that was answered before it began. *)
ReadsSeeAnswered == "stale" \notin wrong
(* It returns no older state than a read that ended before it began. *)
ReadsMonotone == "backwards" \notin wrong
(* Integrity: it returns only committed state. *)
ReadsCommitted == "uncommitted" \notin wrong
(* Integrity: it returns the state after one entry. *)
ReadsExact == "torn" \notin wrong
(* An answered write is the one that was committed. *)
AnswersTrue == "lost" \notin wrong
(* Administration is answered after it is applied. *)
AdministrationApplied == "early" \notin wrong
(* Constraint for the short configurations: no server can depose the last leader. Its own lease is *)
(* checked in the larger ones.                                                                     *)
LastLeaderStays ==
    \A s \in Servers : (role[s] = "leader" /\ term[s] = MaxTerm) => round[s].n = 0

(* While a lease may serve reads, no later leader has committed anything. *)
LeaseExclusive ==
    \A s \in Servers : (role[s] = "leader" /\ lease[s] > 0) =>
        \A o \in Servers : role[o] = "leader" => term[o] <= term[s]
(* A leader that serves knows all that is committed, unless a later leader has followed it. *)
ServingKnowsCommitted ==
    \A s \in Servers : (Serves(s) /\ \A t \in (term[s] + 1)..MaxTerm : lead[t].by = None)
        => commit[s] >= Len(chosen)
CommittedAgree == \A s \in Servers : IsChosen(log[s], commit[s])
AnsweredCommitted == answered <= Len(chosen)
(* An answered write is durable on a quorum. *)
AnsweredDurable ==
    {s \in Servers : persisted[s] >= answered /\ IsChosen(log[s], answered)} \in Quorums
AppliedDurable == \A s \in Servers : applied[s] <= persisted[s]
(* What is applied is within the published window. *)
WindowAroundApplied ==
    Steps => \A s \in Servers : window[s].a <= applied[s] /\ applied[s] <= window[s].r

=============================================================================
