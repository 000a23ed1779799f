import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;

/** Requests to a server of its own, traced by dd-java-agent: argument 1 is their number. */
public class App {
    public static void main(String[] arguments) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.createContext("/cart", exchange -> {
            exchange.sendResponseHeaders(200, -1);
            exchange.close();
        });
        server.start();
        URI cart = URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/cart");
        HttpClient client = HttpClient.newHttpClient();
        for (int number = 0; number < Integer.parseInt(arguments[0]); number++) {
            client.send(HttpRequest.newBuilder(cart).build(), BodyHandlers.discarding());
        }
        server.stop(0);
    }
}
