import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Optional;
import org.tikv.common.TiConfiguration;
import org.tikv.common.TiSession;
import org.tikv.raw.RawKVClient;
import org.tikv.shade.com.google.protobuf.ByteString;

/**
 * Makes one call of TiKV's own, unmodified Java client and prints what its user sees.
 *
 * <p>java -cp CLASSPATH Answers.java ADDR [CALL DIR]
 *
 * <p>Without a call it writes, reads and scans some keys. The variables TLS_CA, TLS_CERT and TLS_KEY name the files
 * of TLS.
 *
 * <p>It connects and makes the call with another key, so that it knows the regions and has loaded its classes,
 * creates DIR/ready, waits for DIR/go, and makes the call. The last line is one JSON object. Calls have 30 s: by
 * default a call has 200 ms.
 */
public class Answers {
  public static void main(String[] arguments) throws Exception {
    if (arguments.length != 1 && arguments.length != 3) {
      System.err.println("usage: Answers ADDR [CALL DIR]");
      System.exit(2);
    }
    TiConfiguration options = TiConfiguration.createRawDefault(arguments[0]);
    options.setTimeout(30_000);
    options.setRawKVWriteTimeoutInMS(30_000);
    if (System.getenv("TLS_CA") != null) {
      options.setTlsEnable(true);
      options.setTrustCertCollectionFile(System.getenv("TLS_CA"));
      options.setKeyCertChainFile(System.getenv("TLS_CERT"));
      options.setKeyFile(System.getenv("TLS_KEY"));
    }
    if (arguments.length == 1) {
      round(options);
    }
    options.setEnableAtomicForCAS(arguments[1].equals("swap"));
    RawKVClient client = TiSession.create(options).createRawClient();
    client.get(ByteString.copyFromUtf8("answers/warm"));
    if (!arguments[1].equals("long-key")) {
      attempt(client, arguments[1], "answers/first/java");
    }
    Path directory = Path.of(arguments[2]);
    Files.createFile(directory.resolve("ready"));
    while (!Files.exists(directory.resolve("go"))) {
      Thread.sleep(10);
    }
    long started = System.nanoTime();
    String error = attempt(client, arguments[1], "answers/java");
    double seconds = (System.nanoTime() - started) / 1e9;
    System.out.println("{\"error\":\"" + escaped(error) + "\",\"rows\":0,\"seconds\":" + seconds + "}");
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }

  /** Ends the process: a client that failed leaves threads that would keep it. */
  private static void round(TiConfiguration options) {
    try {
      roundOf(TiSession.create(options).createRawClient());
      System.out.println("{\"error\":\"\",\"rows\":10,\"seconds\":0}");
      System.out.flush();
      Runtime.getRuntime().halt(0);
    } catch (RuntimeException failure) {
      failure.printStackTrace();
      Runtime.getRuntime().halt(1);
    }
  }

  private static void roundOf(RawKVClient client) {
    for (int number = 0; number < 10; number++) {
      ByteString key = ByteString.copyFromUtf8("round/java/" + number);
      client.put(key, key);
      if (!client.get(key).equals(Optional.of(key))) {
        throw new IllegalStateException("another value of " + key);
      }
    }
    ByteString start = ByteString.copyFromUtf8("round/java/");
    int rows = client.scan(start, ByteString.copyFromUtf8("round/java0"), 100).size();
    if (rows != 10) {
      throw new IllegalStateException("a scan of 10 keys returned " + rows);
    }
  }

  private static String attempt(RawKVClient client, String call, String key) {
    StringBuilder text = new StringBuilder();
    try {
      call(client, call, ByteString.copyFromUtf8(key));
    } catch (Exception failure) {
      for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
        text.append(cause).append("; ");
      }
    }
    return text.toString();
  }

  private static void call(RawKVClient client, String call, ByteString key) {
    ByteString value = ByteString.copyFromUtf8("1");
    switch (call) {
      case "put" -> client.put(key, value);
      case "long-key" -> client.put(ByteString.copyFrom(new byte[9000]), value);
      case "swap" -> client.compareAndSet(key, Optional.empty(), value);
      default -> throw new IllegalArgumentException(call);
    }
  }

  private static String escaped(String text) {
    StringBuilder escaped = new StringBuilder();
    for (char one : text.toCharArray()) {
      if (one == '"' || one == '\\') {
        escaped.append('\\').append(one);
      } else {
        escaped.append(one < ' ' ? ' ' : one);
      }
    }
    return escaped.toString();
  }
}
