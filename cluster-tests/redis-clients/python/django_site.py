"""The site that the sessions are those of."""

from django.contrib.auth import authenticate, login, logout
from django.http import HttpResponse
from django.urls import path
from django_ratelimit.decorators import ratelimit


def count(request):
    request.session["count"] = request.session.get("count", 0) + 1
    return HttpResponse(str(request.session["count"]))


def enter(request):
    user = authenticate(request, username="someone", password="secret")
    login(request, user)
    return HttpResponse(user.username)


def leave(request):
    logout(request)
    return HttpResponse("")


def user(request):
    return HttpResponse(f"{request.user.get_username()} {request.session.get('count', 0)}")


@ratelimit(key="get:who", rate="3/h", block=True)
def limited(request):
    return HttpResponse("allowed")


urlpatterns = [
    path("count", count),
    path("login", enter),
    path("logout", leave),
    path("user", user),
    path("limited", limited),
]
