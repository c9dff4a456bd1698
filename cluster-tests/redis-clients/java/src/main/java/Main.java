import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Runs Redis clients of Java and libraries on top of them, unmodified, against the nodes of a cluster.
 *
 * <p>java -cp CLASSPATH Main --nodes HOST:PORT,HOST:PORT,HOST:PORT --phase check|kill --seconds S [--only NAME]
 *
 * <p>It prints one line of JSON for each result. The exit code is 0 if it ran to its end, whatever the results.
 */
public final class Main {
  /** A client or a library: its checks, and for clients how to open a writer for the phase kill. */
  record Subject(String name, Class<?> main, String kind, Map<String, Check> checks, Opener writer) {
    static Subject client(String name, Class<?> main, Map<String, Check> checks, Opener writer) {
      return new Subject(name, main, "client", checks, writer);
    }

    static Subject framework(String name, Class<?> main, Map<String, Check> checks) {
      return new Subject(name, main, "framework", checks, null);
    }
  }

  interface Check {
    void run(Test test) throws Exception;
  }

  interface Opener {
    Writer open(String host, int port) throws Exception;
  }

  /** What the phase kill needs of a client. */
  interface Writer {
    void set(String name, String value) throws Exception;

    /** Returns the value, or null. */
    String get(String name) throws Exception;
  }

  /** Reason why something is not possible. */
  static final class Skip extends Exception {
    Skip(String text) {
      super(text);
    }
  }

  public static void main(String[] arguments) throws Exception {
    String nodes = option(arguments, "--nodes", "");
    String phase = option(arguments, "--phase", "check");
    double seconds = Double.parseDouble(option(arguments, "--seconds", "20"));
    String only = option(arguments, "--only", "");
    if (nodes.isEmpty() || !(phase.equals("check") || phase.equals("kill"))) {
      System.err.println("--nodes HOST:PORT,… and --phase check|kill are needed");
      System.exit(2);
    }
    List<Thread> killed = new ArrayList<>();
    for (Subject subject : subjects()) {
      if (!only.isEmpty() && !only.equals(subject.name())) {
        continue;
      }
      if (phase.equals("check")) {
        subject.checks().forEach((name, check) -> check(subject, name, check, nodes.split(",")));
      } else if (subject.writer() != null) {
        Thread thread = new Thread(() -> Kill.run(subject, nodes.split(","), seconds));
        thread.start();
        killed.add(thread);
      }
    }
    for (Thread thread : killed) {
      thread.join();
    }
    // Clients leave threads that would keep the process.
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }

  private static List<Subject> subjects() {
    List<Subject> all = new ArrayList<>();
    all.add(JedisChecks.subject());
    all.add(LettuceChecks.subject());
    all.addAll(RedissonChecks.subjects());
    all.addAll(SpringChecks.subjects());
    return all;
  }

  private static String option(String[] arguments, String name, String otherwise) {
    for (int place = 0; place + 1 < arguments.length; place++) {
      if (arguments[place].equals(name)) {
        return arguments[place + 1];
      }
    }
    return otherwise;
  }

  private static void check(Subject subject, String name, Check check, String[] nodes) {
    try {
      check.run(new Test(subject.name() + "-" + name, nodes[0]));
      print(subject, name, "passed", "");
    } catch (Skip skip) {
      print(subject, name, "skipped", skip.getMessage());
    } catch (Exception | AssertionError | LinkageError failure) {
      print(subject, name, "failed", textOf(failure));
    }
  }

  /** Returns the messages of an error and of its causes. */
  static String textOf(Throwable failure) {
    StringBuilder text = new StringBuilder();
    for (Throwable it = failure; it != null && text.length() < 400; it = it.getCause()) {
      text.append(text.isEmpty() ? "" : " <- ").append(it.getClass().getSimpleName()).append(": ");
      text.append(it.getMessage());
    }
    return text.toString();
  }

  static synchronized void print(Subject subject, String check, String outcome, String text) {
    String jar = subject.main().getProtectionDomain().getCodeSource().getLocation().getPath();
    String version = jar.replaceAll(".*-([0-9][^/]*)\\.jar$", "$1").replace(".RELEASE", "");
    System.out.printf(
        "{\"client\":\"%s\",\"version\":\"%s\",\"kind\":\"%s\",\"check\":\"%s\",\"outcome\":\"%s\",\"text\":\"%s\"}%n",
        subject.name(), version, subject.kind(), check, outcome, escaped(text));
    System.out.flush();
  }

  private static String escaped(String text) {
    String plain = text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n").replace("\r", "\\r");
    return plain.replaceAll("\\p{Cntrl}", " ");
  }
}
