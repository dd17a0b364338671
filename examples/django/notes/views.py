import json

from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_http_methods

from .models import Note


@require_http_methods(["GET", "POST"])
def notes(request: HttpRequest) -> JsonResponse:
    if request.method == "POST":
        Note.objects.create(text=json.loads(request.body)["text"])
        return JsonResponse({}, status=201)
    return JsonResponse(list(Note.objects.order_by("pk").values_list("text", flat=True)), safe=False)


def status(request: HttpRequest) -> JsonResponse:
    with connection.cursor() as cursor:
        cursor.execute("SELECT onewrite_status()")
        return JsonResponse({"onewrite": cursor.fetchone()[0]})
